/* linear: panels of 32 outputs, each output sequential over the inputs, one fused product and sum per step.
 *
 * A block is up to ROWS rows times one panel, all sums in registers. A row's sums never meet another row's,
 * and their order is the inputs' order, so a row's bits are the same in any block. Definition: reference.py */

#include <stdint.h>
#include <string.h>

#include "linear.cdef"
#include "vectors.h"

enum { PANEL = 2 * LANES, ROWS = 12, ROWS_PER_CHUNK = 96 };

int64_t minisgl_linear_packed_bytes(int64_t out_features, int64_t in_features, int type)
{
    return (out_features + PANEL - 1) / PANEL * PANEL * in_features * (type == F32 ? 4 : 2);
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

void minisgl_linear_pack(const char *weight, int64_t row_stride, int64_t out_features, int64_t in_features,
                         int type, char *packed, int num_threads)
{
    const int64_t size = type == F32 ? 4 : 2;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1) schedule(static)
    for (int64_t first = 0; first < out_features; first += PANEL) {
        int64_t count = out_features - first < PANEL ? out_features - first : PANEL;
        pack_panel(weight + first * row_stride * size, row_stride, count, in_features, size,
                   packed + first * in_features * size);
    }
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

void minisgl_linear(const float *x, int64_t num_rows, const char *packed, int64_t out_features,
                    int64_t in_features, int type, const float *bias, char *out, int num_threads)
{
    const int64_t size = type == F32 ? 4 : 2, num_panels = (out_features + PANEL - 1) / PANEL;
    const int64_t num_chunks = (num_rows + ROWS_PER_CHUNK - 1) / ROWS_PER_CHUNK;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1) schedule(dynamic)
    for (int64_t task = 0; task < num_panels * num_chunks; task++) {
        int64_t row = task / num_panels * ROWS_PER_CHUNK, first = task % num_panels * PANEL;
        int64_t rows = num_rows - row < ROWS_PER_CHUNK ? num_rows - row : ROWS_PER_CHUNK;
        panel_rows(x + row * in_features, rows, packed + first * in_features * size, out_features, in_features,
                   type, bias, out + row * out_features * size, first);
    }
}
