/* sample: one row at a time: its largest logit, then, above temperature 0, weights in the definition's order.
 * Sums are sequential in that order, in double. Definition: reference.py */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "pool.h"
#include "sample.cdef"
#include "vectors.h"

enum { DONE = -1, NO_MEMORY = -2, REFUSED = -3 };

struct choice {
    double weight;
    int64_t token;
};

static double logit_at(const char *logits, int64_t at, int type)
{
    if (type == F32)
        return ((const float *)(const void *)logits)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)(const void *)logits)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The lowest token with the largest logit; -1 if that is not finite or one is NaN. */
static int64_t best_token(const char *logits, int64_t first, int64_t vocab_size, int type)
{
    vec largest = splat(-__builtin_inff());
    ivec is_nan = {0};
    for (int64_t at = 0; at < vocab_size; at += LANES) {
        int64_t n = vocab_size - at < LANES ? vocab_size - at : LANES;
        vec value = any_load(logits, first + at, n, type);
        for (int64_t lane = n; lane < LANES; lane++)
            value[lane] = -__builtin_inff();
        is_nan |= value != value;
        largest = choose(value > largest, value, largest);
    }
    float best = lane_max(largest);
    for (int lane = 0; lane < LANES; lane++)
        if (is_nan[lane])
            return -1;
    if (!(best >= -FLT_MAX && best <= FLT_MAX))
        return -1;
    int64_t token = 0;
    while (logit_at(logits, first + token, type) != (double)best)
        token++;
    return token;
}

/* By falling weight, then by rising token. */
static int before(const void *left, const void *right)
{
    const struct choice *a = left, *b = right;
    if (a->weight != b->weight)
        return a->weight > b->weight ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

static int64_t draw(const struct choice *choices, int64_t vocab_size, int64_t top_k, double top_p, double uniform,
                    double *running)
{
    double total = 0;
    for (int64_t i = 0; i < vocab_size; i++)
        running[i] = total += choices[i].weight;
    int64_t limit = top_k <= 0 || top_k > vocab_size ? vocab_size : top_k, kept = limit;
    for (int64_t i = 0; i < limit; i++)
        if (running[i] >= top_p * total) {
            kept = i + 1;
            break;
        }
    int64_t i = 0;
    while (!(running[i] > uniform * running[kept - 1]))
        i++;
    return choices[i].token;
}

static int64_t sample_row(const char *logits, int64_t first, int64_t vocab_size, int type, double temperature,
                          int64_t top_k, double top_p, double uniform, int64_t best)
{
    struct choice *choices = malloc((size_t)vocab_size * sizeof *choices);
    double *running = malloc((size_t)vocab_size * sizeof *running);
    int64_t token = NO_MEMORY;
    if (choices != NULL && running != NULL) {
        double largest = logit_at(logits, first + best, type);
        for (int64_t i = 0; i < vocab_size; i++)
            choices[i] = (struct choice){exp((logit_at(logits, first + i, type) - largest) / temperature), i};
        qsort(choices, (size_t)vocab_size, sizeof *choices, before);
        token = draw(choices, vocab_size, top_k, top_p, uniform, running);
    }
    free(choices);
    free(running);
    return token;
}

/* Whether the settings of a row are in range; NaN is in no range. */
static int is_allowed(double temperature, double top_p, double uniform)
{
    return temperature >= 0 && temperature <= DBL_MAX && top_p > 0 && top_p <= 1 && uniform >= 0 && uniform < 1;
}

struct call {
    const char *logits;
    const double *temperature, *top_p, *uniform;
    const int64_t *top_k;
    int64_t *tokens;
    int64_t vocab_size;
    int type;
};

/* Writes a row's token, or REFUSED or NO_MEMORY in its place. */
static void sample_task(const void *context, int64_t row, int worker)
{
    (void)worker;
    const struct call *c = context;
    const int64_t first = row * c->vocab_size;
    int64_t token = best_token(c->logits, first, c->vocab_size, c->type);
    if (token < 0 || !is_allowed(c->temperature[row], c->top_p[row], c->uniform[row]))
        token = REFUSED;
    else if (c->temperature[row] > 0)
        token = sample_row(c->logits, first, c->vocab_size, c->type, c->temperature[row], c->top_k[row],
                           c->top_p[row], c->uniform[row], token);
    c->tokens[row] = token;
}

int64_t minisgl_sample(const char *logits, int64_t num_reqs, int64_t vocab_size, int type,
                       const double *temperature, const int64_t *top_k, const double *top_p,
                       const double *uniform, int64_t *tokens, int num_threads)
{
    const struct call call = {logits, temperature, top_p, uniform, top_k, tokens, vocab_size, type};
    minisgl_parallel(sample_task, &call, num_reqs, num_threads);
    int64_t outcome = DONE;
    for (int64_t row = num_reqs - 1; row >= 0; row--)
        if (tokens[row] == NO_MEMORY)
            return NO_MEMORY;
        else if (tokens[row] == REFUSED)
            outcome = row;
    return outcome;
}
