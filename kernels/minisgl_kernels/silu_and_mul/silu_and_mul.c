/* silu_and_mul: 16 elements at a time, each on its own. Definition: reference.py */

#include <stdint.h>

#include "silu_and_mul.cdef"
#include "vectors.h"

void minisgl_silu_and_mul(const char *gate, int64_t gate_stride, const char *up, int64_t up_stride,
                          int64_t num_rows, int64_t width, int type, char *out, int num_threads)
{
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1) schedule(static)
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t at = 0; at < width; at += LANES) {
            int64_t n = width - at < LANES ? width - at : LANES;
            vec x = any_load(gate, row * gate_stride + at, n, type);
            vec y = any_load(up, row * up_stride + at, n, type);
            vec small = vec_exp(choose(x > 0, -x, x)); /* exp(-|x|) cannot overflow */
            vec gated = x * (choose(x > 0, splat(1), small) / (1.0f + small));
            any_store(out, row * width + at, gated * y, n, type);
        }
}
