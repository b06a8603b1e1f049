// page_table: one thread per slot written, one per slot read. Strides in elements.
// Definition: reference.py. Every product of a row and a stride, or a page and a size, is 64 bits wide.

static __device__ long long this_thread()
{
    return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

extern "C" __global__ void minisgl_write_page_table(int *page_table, long long row_stride, long long column_stride,
                                                    const int *rows, const int *page_idxs, const int *pages,
                                                    long long num_entries, long long page_size)
{
    const long long entry = this_thread() / page_size, offset = this_thread() % page_size;
    if (entry >= num_entries)
        return;
    const long long column = page_idxs[entry] * page_size + offset;
    page_table[rows[entry] * row_stride + column * column_stride] = static_cast<int>(pages[entry] * page_size + offset);
}

extern "C" __global__ void minisgl_read_page_table(const int *page_table, long long row_stride,
                                                   long long column_stride, const int *rows, const int *positions,
                                                   long long num_tokens, int *slots)
{
    const long long token = this_thread();
    if (token < num_tokens)
        slots[token] = page_table[rows[token] * row_stride + positions[token] * column_stride];
}
