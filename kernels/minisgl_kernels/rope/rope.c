/* rope: one token after the other; its angles, cosines and sines in double, then every head in float.
 * Tokens are independent. Definition: reference.py */

#define _GNU_SOURCE /* sincos */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "pool.h"
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

enum { TOKENS = 16 }; /* of a task */

struct call {
    const char *q, *k;
    char *q_out, *k_out;
    const int64_t *positions;
    const double *inv_freq;
    float *angles; /* [num_threads][2 * num_pairs] */
    int64_t q_stride, k_stride, num_tokens, num_heads, num_kv_heads, num_pairs;
    double scaling;
    int type;
};

static void turn_token(const struct call *call, int64_t token, float *cosines)
{
    const int64_t num_pairs = call->num_pairs, head_dim = 2 * num_pairs;
    float *sines = cosines + num_pairs;
    for (int64_t pair = 0; pair < num_pairs; pair++) {
        double sine, cosine;
        sincos((double)call->positions[token] * call->inv_freq[pair], &sine, &cosine);
        cosines[pair] = (float)(cosine * call->scaling);
        sines[pair] = (float)(sine * call->scaling);
    }
    turn_heads(call->q, token * call->q_stride, call->num_heads, num_pairs, cosines, sines, call->type, call->q_out,
               token * call->num_heads * head_dim);
    turn_heads(call->k, token * call->k_stride, call->num_kv_heads, num_pairs, cosines, sines, call->type,
               call->k_out, token * call->num_kv_heads * head_dim);
}

static void turn_task(const void *context, int64_t task, int worker)
{
    const struct call *call = context;
    for (int64_t token = task * TOKENS; token < call->num_tokens && token < (task + 1) * TOKENS; token++)
        turn_token(call, token, call->angles + worker * 2 * call->num_pairs);
}

int minisgl_rope(const char *q, int64_t q_stride, const char *k, int64_t k_stride, int64_t num_tokens,
                 int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, const int64_t *positions,
                 const double *inv_freq, double scaling, int type, char *q_out, char *k_out, int num_threads)
{
    float *angles = malloc((size_t)(num_threads * head_dim + 1) * sizeof *angles);
    if (angles == NULL)
        return 1;
    const struct call call = {.q = q, .k = k, .q_out = q_out, .k_out = k_out, .positions = positions,
                              .inv_freq = inv_freq, .angles = angles, .q_stride = q_stride, .k_stride = k_stride,
                              .num_tokens = num_tokens, .num_heads = num_heads, .num_kv_heads = num_kv_heads,
                              .num_pairs = head_dim / 2, .scaling = scaling, .type = type};
    minisgl_parallel(turn_task, &call, (num_tokens + TOKENS - 1) / TOKENS, num_threads);
    free(angles);
    return 0;
}
