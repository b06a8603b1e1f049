// paged_attention: one block per query token and head, 128 keys at a time, a running maximum.
//
// A block of keys begins at a multiple of 128 of the absolute position. Thread i has key i of the block: its
// score is sequential over head_dim. Maximum and sum go through one tree; then thread d sums weight * value of
// dimension d, keys in ascending position. All of it depends on the token alone, so extend and decode, which
// differ only in how a block finds its token, give the same bits. Definition: reference.py
// Every product of a slot and a stride is 64 bits wide.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int KEYS = 128;        // keys of a block of keys, and threads of a block
constexpr int MOST_WIDTH = 256;  // of head_dim

struct Call {
    const void *q, *k_cache, *v_cache;
    void *out;
    const int *page_table, *rows, *q_starts, *kv_lens;
    long long q_stride, k_stride, v_stride, row_stride, column_stride;
    int num_reqs, num_heads, group, head_dim, window;
    float scale;
};

static __device__ float wide(float x) { return x; }
static __device__ float wide(__half x) { return __half2float(x); }
static __device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ void narrow(float x, float *to) { *to = x; }
static __device__ void narrow(float x, __half *to) { *to = __float2half_rn(x); }
static __device__ void narrow(float x, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(x); }

// The largest, or the sum, of one value per thread; everyone gets it.
template <bool IS_SUM>
static __device__ float reduce(float value, float *shared)
{
    shared[threadIdx.x] = value;
    for (int step = KEYS / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) {
            const float other = shared[threadIdx.x + step];
            shared[threadIdx.x] = IS_SUM ? shared[threadIdx.x] + other : fmaxf(shared[threadIdx.x], other);
        }
    }
    __syncthreads();
    const float result = shared[0];
    __syncthreads();
    return result;
}

template <typename T>
static __device__ float score(const float *query, const T *key, int head_dim, float scale)
{
    float sum = 0;
    for (int at = 0; at < head_dim; at++)
        sum = fmaf(query[at], wide(key[at]), sum);
    return sum * scale;
}

template <typename T>
static __device__ void attend(const Call &call, long long request, long long token, int head)
{
    __shared__ float query[MOST_WIDTH], weights[KEYS], shared[KEYS];
    __shared__ long long slots[KEYS];
    const int kv_head = head / call.group;
    const long long position = call.kv_lens[request] - call.q_starts[request + 1] + token;
    const long long low = call.window > 0 ? max(0LL, position - call.window + 1) : 0;
    const int *table = call.page_table + call.rows[request] * call.row_stride;
    for (int at = threadIdx.x; at < call.head_dim; at += KEYS)
        query[at] = wide(static_cast<const T *>(call.q)[token * call.q_stride + head * call.head_dim + at]);
    float largest = -INFINITY, total = 0, sums[MOST_WIDTH / KEYS] = {};
    for (long long first = low / KEYS * KEYS; first <= position; first += KEYS) {
        const long long key = first + threadIdx.x;
        const bool is_seen = key >= low && key <= position;
        __syncthreads();
        if (is_seen)
            slots[threadIdx.x] = table[key * call.column_stride];
        __syncthreads();
        float mine = -INFINITY;
        if (is_seen)
            mine = score(query,
                         static_cast<const T *>(call.k_cache) + slots[threadIdx.x] * call.k_stride
                             + kv_head * call.head_dim,
                         call.head_dim, call.scale);
        const float above = fmaxf(largest, reduce<false>(mine, shared));
        const float shrink = expf(largest - above);
        weights[threadIdx.x] = is_seen ? expf(mine - above) : 0;
        total = total * shrink + reduce<true>(weights[threadIdx.x], shared);
        const int from = static_cast<int>(max(low - first, 0LL));
        const int to = static_cast<int>(min(position + 1 - first, static_cast<long long>(KEYS)));
        for (int part = 0; part * KEYS < call.head_dim; part++) {
            const int at = part * KEYS + threadIdx.x;
            if (at >= call.head_dim)
                continue;
            const T *values = static_cast<const T *>(call.v_cache) + kv_head * call.head_dim + at;
            float sum = sums[part] * shrink;
            for (int i = from; i < to; i++)
                sum = fmaf(weights[i], wide(values[slots[i] * call.v_stride]), sum);
            sums[part] = sum;
        }
        largest = above;
    }
    for (int part = 0; part * KEYS < call.head_dim; part++) {
        const int at = part * KEYS + threadIdx.x;
        if (at < call.head_dim)
            narrow(sums[part] / total,
                   static_cast<T *>(call.out) + (token * call.num_heads + head) * call.head_dim + at);
    }
}

// grid (num_tokens, num_heads): the request is the last one that begins at or before the token
template <typename T>
static __device__ void extend(const Call &call)
{
    const long long token = blockIdx.x;
    int low = 0, high = call.num_reqs;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (call.q_starts[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    attend<T>(call, low, token, blockIdx.y);
}

// grid (num_reqs, num_heads): one query token per request
template <typename T>
static __device__ void decode(const Call &call)
{
    attend<T>(call, blockIdx.x, blockIdx.x, blockIdx.y);
}

extern "C" __global__ void minisgl_extend_f32(Call call) { extend<float>(call); }
extern "C" __global__ void minisgl_extend_f16(Call call) { extend<__half>(call); }
extern "C" __global__ void minisgl_extend_bf16(Call call) { extend<__nv_bfloat16>(call); }
extern "C" __global__ void minisgl_decode_f32(Call call) { decode<float>(call); }
extern "C" __global__ void minisgl_decode_f16(Call call) { decode<__half>(call); }
extern "C" __global__ void minisgl_decode_bf16(Call call) { decode<__nv_bfloat16>(call); }
