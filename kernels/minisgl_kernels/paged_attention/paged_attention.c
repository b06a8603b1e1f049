/* paged_attention: two passes over the keys of one request and KV head, for a block of its queries.
 *
 * Pass 1 computes all scores, so the largest is exact; pass 2 their weights, then the values in ascending
 * position. What a query's bits depend on is fixed by itself: a score is 16 lane sums over head_dim, then
 * lane_sum's tree; weights are summed in 16 lanes by absolute position; a hidden key has weight 0 and its
 * value is not read. Few queries (decode) multiply keys as they lie, many (extend) a transposed block of 16
 * keys: the same sums in the same order, so a token decoded has the bits it has in a prompt.
 * Definition: reference.py. Every product of a slot and a stride is 64 bits wide. */

#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "paged_attention.cdef"
#include "pool.h"
#include "vectors.h"

enum { DONE = -1, NO_MEMORY = -2, KEYS = LANES, QUAD = 4, MOST_ROWS = 96, FEW_ROWS = 12, MOST_CHUNKS = 4, AHEAD = 16 };

/* What all requests share. width: head_dim filled up to whole vectors. */
struct call {
    const char *q, *k_cache, *v_cache;
    char *out;
    const int32_t *page_table, *rows, *q_starts, *kv_lens;
    int64_t q_stride, k_stride, v_stride, row_stride, num_heads, num_kv_heads, head_dim, width, window;
    float scale;
    int type;
};

/* Some rows [from, to) of one request and one KV head. Row token * group + head of the group is one query. */
struct task {
    int64_t request, from, to, kv_head;
};

/* One thread's memory. */
struct scratch {
    float *queries; /* [MOST_ROWS][width] */
    float *sums;    /* [MOST_ROWS][width] of weight * value */
    float *keys;    /* [KEYS][width] a block of K or V, where it cannot be read as it lies */
    float *turned;  /* [width][KEYS] */
    float *scores;  /* [rows][keys from base, whole blocks] */
    float *zeros;   /* [width] */
};

/* The visible keys [low, high) of one row; base is low of the task, rounded down to a block. */
struct span {
    int64_t low, high;
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct span visible(const struct call *call, int64_t position)
{
    int64_t low = call->window > 0 ? larger(0, position - call->window + 1) : 0;
    return (struct span){low, position + 1};
}

/* Pages lie anywhere, so the processor cannot guess the next key: it is told. */
static void fetch(const char *key, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(key + at);
}

/* Pointers to K or V of positions first .. first + 16: zeros outside of [low, high). */
static void find_keys(const struct call *call, const struct task *task, const char *cache, int64_t stride,
                      int64_t first, struct span span, struct scratch *scratch, const float **keys)
{
    const int32_t *slots = call->page_table + (int64_t)call->rows[task->request] * call->row_stride;
    const int as_it_lies = call->type == F32 && call->width == call->head_dim;
    const int64_t size = call->type == F32 ? 4 : 2, head = task->kv_head * call->head_dim;
    for (int64_t i = 0; i < KEYS; i++) {
        int64_t position = first + i;
        if (position < span.low || position >= span.high) {
            keys[i] = scratch->zeros;
            continue;
        }
        if (position + AHEAD < span.high)
            fetch(cache + ((int64_t)slots[position + AHEAD] * stride + head) * size, call->head_dim * size);
        const char *key = cache + ((int64_t)slots[position] * stride + head) * size;
        if (as_it_lies) {
            keys[i] = (const float *)(const void *)key;
            continue;
        }
        float *copy = scratch->keys + i * call->width;
        for (int64_t at = 0; at < call->width; at += LANES)
            vec_store(copy + at, any_load(key, at, smaller(LANES, call->head_dim - at), call->type));
        keys[i] = copy;
    }
}

/* Two times 16 / w keys of w lanes each become twice as many keys of w / 2 lanes. */
#define HALVE(a, b, w) \
    (__builtin_shufflevector(a, b, LOW(0, w), LOW(1, w), LOW(2, w), LOW(3, w), LOW(4, w), LOW(5, w), LOW(6, w), \
                             LOW(7, w), LOW(8, w), LOW(9, w), LOW(10, w), LOW(11, w), LOW(12, w), LOW(13, w), \
                             LOW(14, w), LOW(15, w)) \
     + __builtin_shufflevector(a, b, HIGH(0, w), HIGH(1, w), HIGH(2, w), HIGH(3, w), HIGH(4, w), HIGH(5, w), \
                               HIGH(6, w), HIGH(7, w), HIGH(8, w), HIGH(9, w), HIGH(10, w), HIGH(11, w), \
                               HIGH(12, w), HIGH(13, w), HIGH(14, w), HIGH(15, w)))
#define LOW(lane, w) ((lane) / ((w) / 2) * (w) + (lane) % ((w) / 2))
#define HIGH(lane, w) (LOW(lane, w) + (w) / 2)

/* Lane sums of one key with each of `rows` queries. */
ALWAYS_INLINE void key_sums(const float *key, const float *queries, int64_t width, int rows, vec *sums)
{
    for (int row = 0; row < rows; row++)
        sums[row] = splat(0);
    for (int64_t at = 0; at < width; at += LANES) {
        vec part = vec_load(key + at);
        for (int row = 0; row < rows; row++)
            sums[row] += part * vec_load(queries + row * width + at);
    }
}

/* Scores of 16 keys with `rows` queries, keys as they lie; four keys at a time go through lane_sum's tree. */
ALWAYS_INLINE void dot_rows(const float *const *keys, const float *queries, int64_t width, int rows, vec *scores)
{
    vec quarters[4][QUAD];
    for (int quarter = 0; quarter < 4; quarter++) {
        vec sums[4][QUAD];
        for (int i = 0; i < 4; i++)
            key_sums(keys[4 * quarter + i], queries, width, rows, sums[i]);
        for (int row = 0; row < rows; row++) {
            vec first = HALVE(sums[0][row], sums[1][row], 16), second = HALVE(sums[2][row], sums[3][row], 16);
            quarters[quarter][row] = HALVE(first, second, 8);
        }
    }
    for (int row = 0; row < rows; row++) {
        vec first = HALVE(quarters[0][row], quarters[1][row], 4);
        vec second = HALVE(quarters[2][row], quarters[3][row], 4);
        scores[row] = HALVE(first, second, 2);
    }
}

/* The same from a transposed block: lane sum `lane` of 16 keys with `rows` queries. */
ALWAYS_INLINE void leaf(const float *turned, const float *queries, int64_t width, int rows, int lane, vec *sums)
{
    for (int row = 0; row < rows; row++)
        sums[row] = splat(0);
    for (int64_t at = lane; at < width; at += LANES) {
        vec part = vec_load(turned + at * KEYS);
        for (int row = 0; row < rows; row++)
            sums[row] += part * queries[row * width + at];
    }
}

/* lane_sum's tree over the leaves: NAME adds the sums at lane and lane + STEP, each made by INNER */
#define TREE(NAME, INNER, STEP) \
    ALWAYS_INLINE void NAME(const float *turned, const float *queries, int64_t width, int rows, int lane, \
                            vec *sums) \
    { \
        vec others[QUAD]; \
        INNER(turned, queries, width, rows, lane, sums); \
        INNER(turned, queries, width, rows, lane + (STEP), others); \
        for (int row = 0; row < rows; row++) \
            sums[row] += others[row]; \
    }
TREE(eighth, leaf, 8)
TREE(quarter, eighth, 4)
TREE(half, quarter, 2)
TREE(whole, half, 1)

/* Calls with a constant number of rows and, for the usual ones, a constant width. */
#define WITH_ROWS(function, keys, queries, width, rows, out) \
    switch (rows) { \
    case 1: function(keys, queries, width, 1, out); break; \
    case 2: function(keys, queries, width, 2, out); break; \
    case 3: function(keys, queries, width, 3, out); break; \
    default: function(keys, queries, width, 4, out); break; \
    }

static void scores_as_they_lie(const float *const *keys, const float *queries, int64_t width, int rows, vec *out)
{
    if (width == 64) {
        WITH_ROWS(dot_rows, keys, queries, 64, rows, out)
    } else {
        WITH_ROWS(dot_rows, keys, queries, width, rows, out)
    }
}

ALWAYS_INLINE void tree(const float *turned, const float *queries, int64_t width, int rows, vec *out)
{
    whole(turned, queries, width, rows, 0, out);
}

static void scores_turned(const float *turned, const float *queries, int64_t width, int rows, vec *out)
{
    if (width == 64) {
        WITH_ROWS(tree, turned, queries, 64, rows, out)
    } else {
        WITH_ROWS(tree, turned, queries, width, rows, out)
    }
}

/* [16][16] transposed: four times, lines i and i + 8 are interleaved. */
static void turn(const float *const *keys, int64_t at, float *turned)
{
    vec lines[2][KEYS];
    for (int i = 0; i < KEYS; i++)
        lines[0][i] = vec_load(keys[i] + at);
    for (int round = 0; round < 4; round++) {
        const vec *from = lines[round % 2];
        vec *to = lines[1 - round % 2];
        for (int i = 0; i < KEYS / 2; i++) {
            to[2 * i] = __builtin_shufflevector(from[i], from[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                                22, 7, 23);
            to[2 * i + 1] = __builtin_shufflevector(from[i], from[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                                    29, 14, 30, 15, 31);
        }
    }
    for (int i = 0; i < KEYS; i++)
        vec_store(turned + (at + i) * KEYS, lines[0][i]);
}

static vec hide(vec scores, int64_t first, struct span span)
{
    const ivec lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int32_t low = (int32_t)larger(span.low - first, 0), high = (int32_t)smaller(span.high - first, KEYS);
    return choose((lanes >= low) & (lanes < high), scores, splat(-__builtin_inff()));
}

/* Pass 1: scores of every row with every block, -inf where a key is hidden, and each row's largest. */
static void score(const struct call *call, const struct task *task, struct span all, const struct span *spans,
                  int64_t num_rows, int64_t base, int64_t row_size, struct scratch *scratch, vec *largest)
{
    for (int64_t row = 0; row < num_rows; row++)
        largest[row] = splat(-__builtin_inff());
    for (int64_t first = base; first < all.high; first += KEYS) {
        const float *keys[KEYS];
        find_keys(call, task, call->k_cache, call->k_stride, first, all, scratch, keys);
        for (int64_t at = 0; num_rows > FEW_ROWS && at < call->width; at += LANES)
            turn(keys, at, scratch->turned);
        for (int64_t row = 0; row < num_rows; row += QUAD) {
            int rows = (int)smaller(QUAD, num_rows - row);
            const float *queries = scratch->queries + row * call->width;
            vec scores[QUAD];
            if (num_rows > FEW_ROWS)
                scores_turned(scratch->turned, queries, call->width, rows, scores);
            else
                scores_as_they_lie(keys, queries, call->width, rows, scores);
            for (int i = 0; i < rows; i++) {
                vec scaled = scores[i] * call->scale;
                if (first < spans[row + i].low || first + KEYS > spans[row + i].high)
                    scaled = hide(scaled, first, spans[row + i]);
                largest[row + i] = choose(scaled > largest[row + i], scaled, largest[row + i]);
                vec_store(scratch->scores + (row + i) * row_size + first - base, scaled);
            }
        }
    }
}

/* Pass 2, first half: scores become weights; returns their sum, in 16 lanes by position. */
static float weigh(float *scores, int64_t row_size, float largest)
{
    vec total = splat(0);
    for (int64_t at = 0; at < row_size; at += LANES) {
        vec weights = vec_exp(vec_load(scores + at) - largest);
        vec_store(scores + at, weights);
        total += weights;
    }
    return lane_sum(total);
}

/* sums[row] += weight * value for `chunks` vectors of `rows` rows, values [from, to) of a block in order */
ALWAYS_INLINE void add_values(const float *const *values, int64_t at, int chunks, const float *weights,
                              int64_t row_size, int rows, int64_t from, int64_t to, float *sums, int64_t width)
{
    vec kept[QUAD][MOST_CHUNKS];
    for (int row = 0; row < rows; row++)
        for (int chunk = 0; chunk < chunks; chunk++)
            kept[row][chunk] = vec_load(sums + row * width + at + chunk * LANES);
    for (int64_t i = from; i < to; i++) {
        vec value[MOST_CHUNKS];
        for (int chunk = 0; chunk < chunks; chunk++)
            value[chunk] = vec_load(values[i] + at + chunk * LANES);
        for (int row = 0; row < rows; row++) {
            float weight = weights[row * row_size + i];
            for (int chunk = 0; chunk < chunks; chunk++)
                kept[row][chunk] += value[chunk] * weight;
        }
    }
    for (int row = 0; row < rows; row++)
        for (int chunk = 0; chunk < chunks; chunk++)
            vec_store(sums + row * width + at + chunk * LANES, kept[row][chunk]);
}

static void add_block(const float *const *values, const float *weights, int64_t row_size, int rows, int64_t from,
                      int64_t to, float *sums, int64_t width)
{
    int64_t at = 0;
    for (; at + MOST_CHUNKS * LANES <= width; at += MOST_CHUNKS * LANES)
        switch (rows) {
        case 1: add_values(values, at, 4, weights, row_size, 1, from, to, sums, width); break;
        case 2: add_values(values, at, 4, weights, row_size, 2, from, to, sums, width); break;
        case 3: add_values(values, at, 4, weights, row_size, 3, from, to, sums, width); break;
        default: add_values(values, at, 4, weights, row_size, 4, from, to, sums, width); break;
        }
    for (; at < width; at += LANES)
        add_values(values, at, 1, weights, row_size, rows, from, to, sums, width);
}

/* Pass 2, second half: weighted values, block by block; a row adds visible keys only. */
static void mix(const struct call *call, const struct task *task, struct span all, const struct span *spans,
                int64_t num_rows, int64_t base, int64_t row_size, struct scratch *scratch)
{
    const int64_t width = call->width;
    memset(scratch->sums, 0, (size_t)(num_rows * width) * sizeof(float));
    for (int64_t first = base; first < all.high; first += KEYS) {
        const float *values[KEYS];
        find_keys(call, task, call->v_cache, call->v_stride, first, all, scratch, values);
        for (int64_t row = 0; row < num_rows; row += QUAD) {
            int rows = (int)smaller(QUAD, num_rows - row), last = (int)row + rows - 1;
            const float *weights = scratch->scores + row * row_size + first - base;
            if (first >= spans[last].low && first + KEYS <= spans[row].high) {
                add_block(values, weights, row_size, rows, 0, KEYS, scratch->sums + row * width, width);
                continue;
            }
            for (int i = 0; i < rows; i++) {
                int64_t from = larger(spans[row + i].low - first, 0);
                int64_t to = smaller(spans[row + i].high - first, KEYS);
                if (from < to)
                    add_block(values, weights + i * row_size, row_size, 1, from, to,
                              scratch->sums + (row + i) * width, width);
            }
        }
    }
}

/* Where row `row` of a task is: its query token in the batch and its head. */
struct place {
    int64_t token, head;
};

static struct place place_of(const struct call *call, const struct task *task, int64_t row)
{
    const int64_t group = call->num_heads / call->num_kv_heads, flat = task->from + row;
    return (struct place){call->q_starts[task->request] + flat / group, task->kv_head * group + flat % group};
}

static void read_queries(const struct call *call, const struct task *task, int64_t num_rows, struct span *spans,
                         float *queries)
{
    const int64_t kv_len = call->kv_lens[task->request], q_end = call->q_starts[task->request + 1];
    const int64_t size = call->type == F32 ? 4 : 2, width = call->width;
    for (int64_t row = 0; row < num_rows; row++) {
        struct place place = place_of(call, task, row);
        const char *query = call->q + (place.token * call->q_stride + place.head * call->head_dim) * size;
        spans[row] = visible(call, kv_len - q_end + place.token);
        for (int64_t at = 0; at < width; at += LANES)
            vec_store(queries + row * width + at,
                      any_load(query, at, smaller(LANES, call->head_dim - at), call->type));
    }
}

static void run(const struct call *call, const struct task *task, struct scratch *scratch)
{
    const int64_t num_rows = task->to - task->from, width = call->width;
    struct span spans[MOST_ROWS] = {{0, 0}};
    vec largest[MOST_ROWS];
    float totals[MOST_ROWS];
    read_queries(call, task, num_rows, spans, scratch->queries);
    const struct span all = {spans[0].low, spans[num_rows - 1].high};
    const int64_t base = all.low / KEYS * KEYS, row_size = (all.high - base + KEYS - 1) / KEYS * KEYS;
    score(call, task, all, spans, num_rows, base, row_size, scratch, largest);
    for (int64_t row = 0; row < num_rows; row++)
        totals[row] = weigh(scratch->scores + row * row_size, row_size, lane_max(largest[row]));
    mix(call, task, all, spans, num_rows, base, row_size, scratch);
    for (int64_t row = 0; row < num_rows; row++) {
        struct place place = place_of(call, task, row);
        for (int64_t at = 0; at < width; at += LANES)
            any_store(call->out, (place.token * call->num_heads + place.head) * call->head_dim + at,
                      vec_load(scratch->sums + row * width + at) / totals[row],
                      smaller(LANES, call->head_dim - at), call->type);
    }
}

/* Whether a request's row, lengths and the slots it reads are all there. */
static int fits(const struct call *call, int64_t request, int64_t num_slots, int64_t num_rows, int64_t row_width)
{
    int64_t row = call->rows[request], kv_len = call->kv_lens[request];
    int64_t q_len = (int64_t)call->q_starts[request + 1] - call->q_starts[request];
    if (row < 0 || row >= num_rows || q_len < 0 || q_len > kv_len || kv_len > row_width)
        return 0;
    const int32_t *slots = call->page_table + row * call->row_stride;
    int64_t low = q_len > 0 ? visible(call, kv_len - q_len).low : kv_len;
    int inside = 1;
    for (int64_t position = low; position < kv_len; position++)
        inside &= slots[position] >= 0 && slots[position] < num_slots;
    return inside;
}

/* The scores of the largest task. */
static int64_t most_scores(const struct call *call, int64_t num_reqs)
{
    int64_t most = 0, group = call->num_heads / call->num_kv_heads;
    for (int64_t request = 0; request < num_reqs; request++) {
        int64_t q_len = call->q_starts[request + 1] - call->q_starts[request];
        most = larger(most, smaller(q_len * group, MOST_ROWS) * (call->kv_lens[request] + 2 * KEYS));
    }
    return most;
}

static struct task *list_tasks(const struct call *call, int64_t num_reqs, int64_t *count)
{
    int64_t most = 0, group = call->num_heads / call->num_kv_heads;
    for (int64_t request = 0; request < num_reqs; request++) {
        int64_t rows = (call->q_starts[request + 1] - call->q_starts[request]) * group;
        most += (rows + MOST_ROWS - 1) / MOST_ROWS * call->num_kv_heads;
    }
    struct task *tasks = malloc((size_t)(most + 1) * sizeof *tasks);
    *count = 0;
    for (int64_t request = 0; tasks != NULL && request < num_reqs; request++) {
        int64_t rows = (call->q_starts[request + 1] - call->q_starts[request]) * group;
        for (int64_t from = 0; from < rows; from += MOST_ROWS)
            for (int64_t head = 0; head < call->num_kv_heads; head++)
                tasks[(*count)++] = (struct task){request, from, smaller(from + MOST_ROWS, rows), head};
    }
    return tasks;
}

/* What the tasks of a call share. */
struct work {
    const struct call *call;
    const struct task *tasks;
    float *memory; /* [num_threads][floats] */
    int64_t floats;
};

static void run_task(const void *context, int64_t task, int worker)
{
    const struct work *work = context;
    const int64_t width = work->call->width;
    struct scratch scratch = {0};
    scratch.queries = work->memory + worker * work->floats;
    scratch.sums = scratch.queries + MOST_ROWS * width;
    scratch.keys = scratch.sums + MOST_ROWS * width;
    scratch.turned = scratch.keys + KEYS * width;
    scratch.zeros = scratch.turned + KEYS * width;
    scratch.scores = scratch.zeros + width;
    memset(scratch.zeros, 0, (size_t)width * sizeof(float));
    run(work->call, &work->tasks[task], &scratch);
}

static int run_all(const struct call *call, const struct task *tasks, int64_t num_tasks, int64_t scores,
                   int num_threads)
{
    const int64_t floats = call->width * (2 * MOST_ROWS + 2 * KEYS + 1) + (scores + LANES - 1) / LANES * LANES;
    float *memory = malloc((size_t)(num_threads * floats) * sizeof *memory);
    if (memory == NULL)
        return 1;
    const struct work work = {call, tasks, memory, floats};
    minisgl_parallel(run_task, &work, num_tasks, num_threads);
    free(memory);
    return 0;
}

int64_t minisgl_paged_attention(const char *q, int64_t q_stride, const char *k_cache, int64_t k_stride,
                                const char *v_cache, int64_t v_stride, int64_t num_slots,
                                const int32_t *page_table, int64_t num_rows, int64_t row_stride,
                                int64_t row_width, const int32_t *rows, const int32_t *q_starts,
                                const int32_t *kv_lens, int64_t num_reqs, int64_t num_tokens,
                                int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, float scale,
                                int64_t sliding_window, int type, char *out, int num_threads)
{
    const struct call call = {
        .q = q, .k_cache = k_cache, .v_cache = v_cache, .out = out, .page_table = page_table, .rows = rows,
        .q_starts = q_starts, .kv_lens = kv_lens, .q_stride = q_stride, .k_stride = k_stride,
        .v_stride = v_stride, .row_stride = row_stride, .num_heads = num_heads, .num_kv_heads = num_kv_heads,
        .head_dim = head_dim, .width = (head_dim + LANES - 1) / LANES * LANES, .window = sliding_window,
        .scale = scale, .type = type,
    };
    if (q_starts[0] != 0 || q_starts[num_reqs] != num_tokens)
        return num_reqs;
    for (int64_t request = 0; request < num_reqs; request++)
        if (!fits(&call, request, num_slots, num_rows, row_width))
            return request;
    int64_t num_tasks = 0;
    struct task *tasks = list_tasks(&call, num_reqs, &num_tasks);
    if (tasks == NULL)
        return NO_MEMORY;
    int failed = run_all(&call, tasks, num_tasks, most_scores(&call, num_reqs), num_threads);
    free(tasks);
    return failed ? NO_MEMORY : DONE;
}
