/* rope: one token after the other; its angles, cosines and sines in double, then every head in float.
 * Tokens are independent. Definition: reference.py */

#define _GNU_SOURCE /* sincos */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "rope.cdef"
#include "vectors.h"

static void turn_heads(const char *x, int64_t first, int64_t num_heads, int64_t num_pairs, const float *cosines,
                       const float *sines, int type, char *out, int64_t out_first)
{
    for (int64_t head = 0; head < num_heads; head++)
        for (int64_t at = 0; at < num_pairs; at += LANES) {
            int64_t n = num_pairs - at < LANES ? num_pairs - at : LANES, low = 2 * head * num_pairs + at;
            vec a = any_load(x, first + low, n, type), b = any_load(x, first + low + num_pairs, n, type);
            vec cosine = vec_load_part(cosines + at, n), sine = vec_load_part(sines + at, n);
            any_store(out, out_first + low, a * cosine - b * sine, n, type);
            any_store(out, out_first + low + num_pairs, b * cosine + a * sine, n, type);
        }
}

int minisgl_rope(const char *q, int64_t q_stride, const char *k, int64_t k_stride, int64_t num_tokens,
                 int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, const int64_t *positions,
                 const double *inv_freq, double scaling, int type, char *q_out, char *k_out, int num_threads)
{
    const int64_t num_pairs = head_dim / 2;
    int failed = 0;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1) reduction(| : failed)
    {
        float *cosines = malloc((size_t)(2 * num_pairs + 1) * sizeof *cosines), *sines = cosines + num_pairs;
        failed = cosines == NULL;
#pragma omp for schedule(static)
        for (int64_t token = 0; token < num_tokens; token++) {
            for (int64_t pair = 0; cosines != NULL && pair < num_pairs; pair++) {
                double sine, cosine;
                sincos((double)positions[token] * inv_freq[pair], &sine, &cosine);
                cosines[pair] = (float)(cosine * scaling);
                sines[pair] = (float)(sine * scaling);
            }
            if (cosines == NULL)
                continue;
            turn_heads(q, token * q_stride, num_heads, num_pairs, cosines, sines, type, q_out,
                       token * num_heads * head_dim);
            turn_heads(k, token * k_stride, num_kv_heads, num_pairs, cosines, sines, type, k_out,
                       token * num_kv_heads * head_dim);
        }
        free(cosines);
    }
    return failed;
}
