/* compare_key: 64 bytes per step with one branch, then token by token inside the step that differs.
 * Definition: reference.py. Keys may start at any address. */

#include <stdint.h>
#include <string.h>

#include "compare_key.cdef"

enum { TOKENS_PER_STEP = 16, BYTES_PER_TOKEN = 4 };

static uint32_t token_at(const char *key, int64_t token)
{
    uint32_t value;
    memcpy(&value, key + token * BYTES_PER_TOKEN, sizeof value);
    return value;
}

static int steps_differ(const char *a, const char *b)
{
    uint32_t difference = 0;
    for (int64_t token = 0; token < TOKENS_PER_STEP; token++)
        difference |= token_at(a, token) ^ token_at(b, token);
    return difference != 0;
}

int64_t minisgl_compare_key(const char *a, const char *b, int64_t num_tokens)
{
    int64_t token = 0;
    while (num_tokens - token >= TOKENS_PER_STEP
           && !steps_differ(a + token * BYTES_PER_TOKEN, b + token * BYTES_PER_TOKEN))
        token += TOKENS_PER_STEP;
    while (token < num_tokens && token_at(a, token) == token_at(b, token))
        token++;
    return token;
}
