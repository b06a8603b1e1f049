/* gather_kv: one memcpy per token and cache, tokens in order, after every slot has been checked.
 * Definition: reference.py. Every product of a slot and a stride is 64 bits wide. */

#include <stdint.h>
#include <string.h>

#include "gather_kv.cdef"

enum { DONE = -1 };

int64_t minisgl_gather_kv(const char *k_cache, int64_t k_cache_stride,
                          const char *v_cache, int64_t v_cache_stride, int64_t num_slots,
                          const int32_t *slots, int64_t num_tokens, char *k, char *v, int64_t row_bytes)
{
    for (int64_t i = 0; i < num_tokens; i++)
        if (slots[i] < 0 || slots[i] >= num_slots)
            return i;
    for (int64_t i = 0; i < num_tokens; i++) {
        int64_t slot = slots[i];
        memcpy(k + i * row_bytes, k_cache + slot * k_cache_stride, (size_t)row_bytes);
        memcpy(v + i * row_bytes, v_cache + slot * v_cache_stride, (size_t)row_bytes);
    }
    return DONE;
}
