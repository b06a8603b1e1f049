/* rms_norm: squares in 16 lanes by place in the row, lane_sum's tree, then one factor per row.
 * Rows are independent and share nothing. Definition: reference.py */

#include <math.h>
#include <stdint.h>

#include "rms_norm.cdef"
#include "vectors.h"

static int64_t part(int64_t at, int64_t size)
{
    return size - at < LANES ? size - at : LANES;
}

static void add_row(const char *x, const char *residual, int64_t first, int64_t size, int type, char *sum)
{
    for (int64_t at = 0; at < size; at += LANES) {
        vec total = any_load(x, first + at, part(at, size), type) + any_load(residual, first + at, part(at, size), type);
        any_store(sum, first + at, total, part(at, size), type);
    }
}

static void norm_row(const char *x, int64_t first, int64_t size, const char *weight, double eps, int type, char *out)
{
    vec squares = splat(0);
    for (int64_t at = 0; at < size; at += LANES) {
        vec value = any_load(x, first + at, part(at, size), type);
        squares += value * value;
    }
    double root = sqrt((double)lane_sum(squares) / (double)size + eps);
    for (int64_t at = 0; at < size; at += LANES) {
        vec value = any_load(x, first + at, part(at, size), type) / (float)root;
        any_store(out, first + at, any_load(weight, at, part(at, size), type) * value, part(at, size), type);
    }
}

void minisgl_rms_norm(const char *x, const char *residual, int64_t num_rows, int64_t hidden_size,
                      const char *weight, double eps, int type, char *sum, char *out, int num_threads)
{
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1) schedule(static)
    for (int64_t row = 0; row < num_rows; row++) {
        if (residual != NULL)
            add_row(x, residual, row * hidden_size, hidden_size, type, sum);
        norm_row(residual != NULL ? sum : x, row * hidden_size, hidden_size, weight, eps, type, out);
    }
}
