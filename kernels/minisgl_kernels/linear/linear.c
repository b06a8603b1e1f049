/* linear: panels of 32 outputs, each output sequential over the inputs, one fused product and sum per step.
 *
 * A block is up to ROWS rows times one panel, all sums in registers. A row's sums never meet another row's,
 * and their order is the inputs' order, so a row's bits are the same in any block. Definition: reference.py */

#include <stdint.h>
#include <string.h>

#include "linear.cdef"
#include "pool.h"
#include "vectors.h"

enum { PANEL = 2 * LANES, ROWS = 12, ROWS_PER_CHUNK = 96 };

static int64_t num_panels(int64_t out_features)
{
    return (out_features + PANEL - 1) / PANEL;
}

int64_t minisgl_linear_packed_bytes(int64_t out_features, int64_t in_features, int type)
{
    return num_panels(out_features) * PANEL * in_features * (type == F32 ? 4 : 2);
}

static void pack_panel(const char *weight, int64_t row_stride, int64_t count, int64_t in_features, int64_t size,
                       char *packed)
{
    memset(packed, 0, (size_t)(PANEL * in_features * size));
    for (int64_t output = 0; output < count; output++)
        for (int64_t input = 0; input < in_features; input++)
            memcpy(packed + (input * PANEL + output) * size, weight + (output * row_stride + input) * size,
                   (size_t)size);
}

struct packing {
    const char *weight;
    char *packed;
    int64_t row_stride, out_features, in_features, size;
};

static void pack_task(const void *context, int64_t task, int worker)
{
    (void)worker;
    const struct packing *p = context;
    const int64_t first = task * PANEL, left = p->out_features - first;
    pack_panel(p->weight + first * p->row_stride * p->size, p->row_stride, left < PANEL ? left : PANEL,
               p->in_features, p->size, p->packed + first * p->in_features * p->size);
}

void minisgl_linear_pack(const char *weight, int64_t row_stride, int64_t out_features, int64_t in_features,
                         int type, char *packed, int num_threads)
{
    const struct packing packing = {weight, packed, row_stride, out_features, in_features, type == F32 ? 4 : 2};
    minisgl_parallel(pack_task, &packing, num_panels(out_features), num_threads);
}

/* `rows` rows (a constant where this is inlined) of one panel */
ALWAYS_INLINE void block(const float *x, int64_t in_features, const char *panel, int type, int rows, vec *sums)
{
    for (int i = 0; i < 2 * rows; i++)
        sums[i] = splat(0);
    for (int64_t input = 0; input < in_features; input++) {
        vec low, high;
        if (type == F32) {
            low = vec_load((const float *)panel + input * PANEL);
            high = vec_load((const float *)panel + input * PANEL + LANES);
        } else {
            low = bf16_load((const uint16_t *)panel + input * PANEL);
            high = bf16_load((const uint16_t *)panel + input * PANEL + LANES);
        }
        for (int row = 0; row < rows; row++) {
            float value = x[row * in_features + input];
            sums[2 * row] += low * value;
            sums[2 * row + 1] += high * value;
        }
    }
}

#define CASE(rows) \
    case rows: { \
        vec kept[2 * (rows)]; \
        if (type == F32) \
            block(x, in_features, panel, F32, rows, kept); \
        else \
            block(x, in_features, panel, BF16, rows, kept); \
        memcpy(sums, kept, sizeof kept); \
        break; \
    }

static void block_of(const float *x, int64_t in_features, const char *panel, int type, int64_t rows, vec *sums)
{
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
    }
}

/* rows of one panel: the product, the bias, the rounding to the output's type */
static void panel_rows(const float *x, int64_t num_rows, const char *panel, int64_t out_features,
                       int64_t in_features, int type, const float *bias, char *out, int64_t first)
{
    int64_t left = out_features - first;
    int64_t counts[2] = {left < LANES ? left : LANES, left < LANES ? 0 : left < PANEL ? left - LANES : LANES};
    vec biases[2] = {splat(0), splat(0)};
    for (int half = 0; bias != NULL && half < 2; half++)
        biases[half] = vec_load_part(bias + first + half * LANES, counts[half]);
    /* as few blocks as possible, and of one size: 16 rows are 8 and 8, not 12 and 4 */
    const int64_t num_blocks = (num_rows + ROWS - 1) / ROWS, step = (num_rows + num_blocks - 1) / num_blocks;
    for (int64_t row = 0; row < num_rows; row += step) {
        int64_t rows = num_rows - row < step ? num_rows - row : step;
        vec sums[2 * ROWS];
        block_of(x + row * in_features, in_features, panel, type, rows, sums);
        for (int64_t i = 0; i < 2 * rows; i++) {
            int64_t at = (row + i / 2) * out_features + first + i % 2 * LANES;
            if (counts[i % 2] > 0)
                any_store(out, at, bias != NULL ? sums[i] + biases[i % 2] : sums[i], counts[i % 2], type);
        }
    }
}

struct product {
    const float *x, *bias;
    const char *packed;
    char *out;
    int64_t num_rows, out_features, in_features;
    int type;
};

/* A task is one panel for up to ROWS_PER_CHUNK rows. */
static void multiply_task(const void *context, int64_t task, int worker)
{
    (void)worker;
    const struct product *p = context;
    const int64_t size = p->type == F32 ? 4 : 2, panels = num_panels(p->out_features);
    const int64_t row = task / panels * ROWS_PER_CHUNK, first = task % panels * PANEL;
    const int64_t rows = p->num_rows - row < ROWS_PER_CHUNK ? p->num_rows - row : ROWS_PER_CHUNK;
    panel_rows(p->x + row * p->in_features, rows, p->packed + first * p->in_features * size, p->out_features,
               p->in_features, p->type, p->bias, p->out + row * p->out_features * size, first);
}

void minisgl_linear(const float *x, int64_t num_rows, const char *packed, int64_t out_features,
                    int64_t in_features, int type, const float *bias, char *out, int num_threads)
{
    const struct product product = {x, bias, packed, out, num_rows, out_features, in_features, type};
    const int64_t num_chunks = (num_rows + ROWS_PER_CHUNK - 1) / ROWS_PER_CHUNK;
    minisgl_parallel(multiply_task, &product, num_panels(out_features) * num_chunks, num_threads);
}
