/* store_kv: one memcpy per token and cache, tokens in order, after all checks have passed.
 * Definition: reference.py. Every product of a slot and a stride is 64 bits wide. */

#include <stdint.h>
#include <string.h>

#include "store_kv.cdef"

enum { DONE = -1, OVERLAP = -2, AHEAD = 4, LINE = 64 };

/* The addresses between the first and the last byte of some rows. */
struct range {
    uintptr_t start, end;
};

static struct range rows(const char *first, int64_t count, int64_t stride, int64_t row_bytes)
{
    uintptr_t start = (uintptr_t)first;
    int64_t bytes = count > 0 && row_bytes > 0 ? (count - 1) * stride + row_bytes : 0;
    return (struct range){start, start + (uintptr_t)bytes};
}

static int meet(struct range a, struct range b)
{
    uintptr_t start = a.start > b.start ? a.start : b.start;
    uintptr_t end = a.end < b.end ? a.end : b.end;
    return start < end;
}

int64_t minisgl_store_kv(char *k_cache, int64_t k_cache_stride, char *v_cache, int64_t v_cache_stride,
                         int64_t num_slots, const int32_t *slots, int64_t num_tokens,
                         const char *k, int64_t k_stride, const char *v, int64_t v_stride,
                         int64_t row_bytes)
{
    const struct range caches[2] = {rows(k_cache, num_slots, k_cache_stride, row_bytes),
                                    rows(v_cache, num_slots, v_cache_stride, row_bytes)};
    const struct range inputs[3] = {rows(k, num_tokens, k_stride, row_bytes),
                                    rows(v, num_tokens, v_stride, row_bytes),
                                    rows((const char *)slots, num_tokens, sizeof *slots, sizeof *slots)};
    int overlap = meet(caches[0], caches[1]);
    for (int cache = 0; cache < 2; cache++)
        for (int input = 0; input < 3; input++)
            overlap |= meet(caches[cache], inputs[input]);
    if (overlap)
        return OVERLAP;
    for (int64_t i = 0; i < num_tokens; i++)
        if (slots[i] < 0 || slots[i] >= num_slots)
            return i;
    for (int64_t i = 0; i < num_tokens; i++) {
        int64_t slot = slots[i];
        if (i + AHEAD < num_tokens)
            for (int64_t at = 0, next = slots[i + AHEAD]; at < row_bytes; at += LINE) {
                __builtin_prefetch(k_cache + next * k_cache_stride + at, 1);
                __builtin_prefetch(v_cache + next * v_cache_stride + at, 1);
            }
        memcpy(k_cache + slot * k_cache_stride, k + i * k_stride, (size_t)row_bytes);
        memcpy(v_cache + slot * v_cache_stride, v + i * v_stride, (size_t)row_bytes);
    }
    return DONE;
}
