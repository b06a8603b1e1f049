// store_kv: one warp per token and cache; lanes copy the row's bytes side by side, 16 at a time where they can.
// Definition: reference.py. Every product of a slot or token and a stride is 64 bits wide.

#include "../rows.cuh"

extern "C" __global__ void minisgl_store_kv(char *k_cache, long long k_cache_stride, char *v_cache,
                                            long long v_cache_stride, const int *slots, long long num_tokens,
                                            const char *k, long long k_stride, const char *v, long long v_stride,
                                            long long row_bytes)
{
    const long long token = first_row();
    if (token >= num_tokens)
        return;
    const long long slot = slots[token];
    copy_row(k_cache + slot * k_cache_stride, k + token * k_stride, row_bytes);
    copy_row(v_cache + slot * v_cache_stride, v + token * v_stride, row_bytes);
}
