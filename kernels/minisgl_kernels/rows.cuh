// What the CUDA copies share: which row a warp has, and how it copies one.

#ifndef MINISGL_ROWS_CUH
#define MINISGL_ROWS_CUH

constexpr int WARP = 32;

// The row of this warp: warps are counted through all blocks.
static __device__ long long first_row()
{
    return (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
}

static __device__ bool is_aligned(const void *a, const void *b, long long bytes)
{
    return ((reinterpret_cast<unsigned long long>(a) | reinterpret_cast<unsigned long long>(b)
             | static_cast<unsigned long long>(bytes))
            & 15)
           == 0;
}

// Copy one row by the lanes of a warp.
static __device__ void copy_row(char *to, const char *from, long long bytes)
{
    const int lane = threadIdx.x % WARP;
    if (is_aligned(to, from, bytes)) {
        for (long long at = lane; at < bytes / 16; at += WARP)
            reinterpret_cast<int4 *>(to)[at] = reinterpret_cast<const int4 *>(from)[at];
        return;
    }
    for (long long at = lane; at < bytes; at += WARP)
        to[at] = from[at];
}

#endif
