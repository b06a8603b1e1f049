/* What the arithmetic kernels share: vectors of 16 floats, bfloat16, exp, and the order of a sum.
 *
 * Bits must depend on a row's own numbers alone, so every sum has one order, whoever computes it: a sum
 * over lanes is lane_sum's tree, a tail is filled up with zeros. The compiler may fuse a product into
 * the sum it goes to (-ffp-contract=fast), never reorder (no -ffast-math). */

#ifndef MINISGL_VECTORS_H
#define MINISGL_VECTORS_H

#include <stdint.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { LANES = 16, F32 = 0, BF16 = 1 }; /* the element types C computes in; others are torch's */

typedef float vec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
typedef uint32_t uvec __attribute__((vector_size(64)));
typedef uint16_t hvec __attribute__((vector_size(32)));
typedef float half_vec __attribute__((vector_size(32)));
typedef float quarter_vec __attribute__((vector_size(16)));

ALWAYS_INLINE vec splat(float value)
{
    return value - (vec){0};
}

/* a where the mask is set, else b */
ALWAYS_INLINE vec choose(ivec mask, vec a, vec b)
{
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
}

ALWAYS_INLINE vec vec_load(const float *from)
{
    vec value;
    memcpy(&value, from, sizeof value);
    return value;
}

ALWAYS_INLINE void vec_store(float *to, vec value)
{
    memcpy(to, &value, sizeof value);
}

/* n <= 16 elements, zeros after them */
ALWAYS_INLINE vec vec_load_part(const float *from, int64_t n)
{
    float lanes[LANES] = {0};
    memcpy(lanes, from, (size_t)n * sizeof *lanes);
    return vec_load(lanes);
}

ALWAYS_INLINE void vec_store_part(float *to, vec value, int64_t n)
{
    float lanes[LANES];
    vec_store(lanes, value);
    memcpy(to, lanes, (size_t)n * sizeof *lanes);
}

ALWAYS_INLINE vec widen(hvec half)
{
    return (vec)(__builtin_convertvector(half, uvec) << 16);
}

/* bfloat16 of each lane, to nearest, ties to even; NaN stays NaN */
ALWAYS_INLINE hvec narrow(vec value)
{
    uvec bits = (uvec)value;
    uvec rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    uvec is_nan = (uvec)(value != value);
    return __builtin_convertvector((rounded & ~is_nan) | (((bits >> 16) | 0x40u) & is_nan), hvec);
}

ALWAYS_INLINE vec bf16_load(const uint16_t *from)
{
    hvec half;
    memcpy(&half, from, sizeof half);
    return widen(half);
}

/* n <= 16 elements of either type as floats, zeros after them */
ALWAYS_INLINE vec any_load(const char *from, int64_t at, int64_t n, int type)
{
    if (type == F32)
        return n == LANES ? vec_load((const float *)from + at) : vec_load_part((const float *)from + at, n);
    uint16_t lanes[LANES] = {0};
    memcpy(lanes, (const uint16_t *)from + at, (size_t)n * sizeof *lanes);
    return bf16_load(lanes);
}

ALWAYS_INLINE void any_store(char *to, int64_t at, vec value, int64_t n, int type)
{
    if (type == F32) {
        if (n == LANES)
            vec_store((float *)to + at, value);
        else
            vec_store_part((float *)to + at, value, n);
        return;
    }
    hvec half = narrow(value);
    memcpy((uint16_t *)to + at, &half, (size_t)n * sizeof(uint16_t));
}

/* the sum of the lanes: halves first, so lane 0 + 8, then + 4, + 2, + 1 */
ALWAYS_INLINE float lane_sum(vec v)
{
    half_vec a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7)
                 + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    quarter_vec b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
    return (b[0] + b[2]) + (b[1] + b[3]);
}

ALWAYS_INLINE float lane_max(vec v)
{
    float largest = v[0];
    for (int lane = 1; lane < LANES; lane++)
        largest = v[lane] > largest ? v[lane] : largest;
    return largest;
}

/* exp(x) within 2 units in the last place: 2^n * exp(r) with |r| <= ln 2 / 2, exp(r) by its series.
 * 2^n is multiplied in two steps, so it overflows to infinity and underflows through the subnormals. */
ALWAYS_INLINE vec vec_exp(vec x)
{
    const vec low = splat(-150.0f), high = splat(150.0f);
    x = choose(x < low, low, x); /* a NaN stays */
    x = choose(x > high, high, x);
    const vec shift = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vec n = (x * 1.44269504088896341f + shift) - shift;
    vec r = x - n * 0.693359375f; /* ln 2 in two parts; the first product is exact */
    r = r + n * 2.12194440e-4f;
    vec p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    ivec whole = __builtin_convertvector(choose(n == n, n, splat(0)), ivec);
    ivec first = whole >> 1, second = whole - first;
    return p * (vec)((first + 127) << 23) * (vec)((second + 127) << 23);
}

#endif
