/* embedding: one memcpy per token, after every id has been checked. Definition: reference.py */

#include <stdint.h>
#include <string.h>

#include "embedding.cdef"

enum { DONE = -1 };

int64_t minisgl_embedding(const int64_t *ids, int64_t num_tokens, const char *weight, int64_t row_stride,
                          int64_t vocab_size, int64_t row_bytes, char *out)
{
    for (int64_t i = 0; i < num_tokens; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return i;
    for (int64_t i = 0; i < num_tokens; i++)
        memcpy(out + i * row_bytes, weight + ids[i] * row_stride, (size_t)row_bytes);
    return DONE;
}
