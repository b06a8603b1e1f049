/* rms_norm: squares in 16 lanes by place in the row, lane_sum's tree, then one factor per row.
 * Rows are independent and share nothing. Definition: reference.py */

#include <math.h>
#include <stdint.h>

#include "pool.h"
#include "rms_norm.cdef"
#include "vectors.h"

enum { ROWS = 16 }; /* of a task */

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

struct call {
    const char *x, *residual, *weight;
    char *sum, *out;
    int64_t num_rows, hidden_size;
    double eps;
    int type;
};

static void norm_task(const void *context, int64_t task, int worker)
{
    (void)worker;
    const struct call *call = context;
    const int64_t size = call->hidden_size;
    for (int64_t row = task * ROWS; row < call->num_rows && row < (task + 1) * ROWS; row++) {
        if (call->residual != NULL)
            add_row(call->x, call->residual, row * size, size, call->type, call->sum);
        norm_row(call->residual != NULL ? call->sum : call->x, row * size, size, call->weight, call->eps, call->type,
                 call->out);
    }
}

void minisgl_rms_norm(const char *x, const char *residual, int64_t num_rows, int64_t hidden_size,
                      const char *weight, double eps, int type, char *sum, char *out, int num_threads)
{
    const struct call call = {x, residual, weight, sum, out, num_rows, hidden_size, eps, type};
    minisgl_parallel(norm_task, &call, (num_rows + ROWS - 1) / ROWS, num_threads);
}
