/* silu_and_mul: 16 elements at a time, each on its own. Definition: reference.py */

#include <stdint.h>

#include "pool.h"
#include "silu_and_mul.cdef"
#include "vectors.h"

enum { ROWS = 8 }; /* of a task */

struct call {
    const char *gate, *up;
    char *out;
    int64_t gate_stride, up_stride, num_rows, width;
    int type;
};

static void gate_row(const struct call *call, int64_t row)
{
    for (int64_t at = 0; at < call->width; at += LANES) {
        int64_t n = call->width - at < LANES ? call->width - at : LANES;
        vec x = any_load(call->gate, row * call->gate_stride + at, n, call->type);
        vec y = any_load(call->up, row * call->up_stride + at, n, call->type);
        vec small = vec_exp(choose(x > 0, -x, x)); /* exp(-|x|) cannot overflow */
        vec gated = x * (choose(x > 0, splat(1), small) / (1.0f + small));
        any_store(call->out, row * call->width + at, gated * y, n, call->type);
    }
}

static void gate_task(const void *context, int64_t task, int worker)
{
    (void)worker;
    const struct call *call = context;
    for (int64_t row = task * ROWS; row < call->num_rows && row < (task + 1) * ROWS; row++)
        gate_row(call, row);
}

void minisgl_silu_and_mul(const char *gate, int64_t gate_stride, const char *up, int64_t up_stride,
                          int64_t num_rows, int64_t width, int type, char *out, int num_threads)
{
    const struct call call = {gate, up, out, gate_stride, up_stride, num_rows, width, type};
    minisgl_parallel(gate_task, &call, (num_rows + ROWS - 1) / ROWS, num_threads);
}
