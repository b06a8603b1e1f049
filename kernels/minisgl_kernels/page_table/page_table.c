/* page_table: one loop over the entries, after every index has been checked.
 * Definition: reference.py. Every product of a row and a stride, or a page and a size, is 64 bits wide. */

#include <stdint.h>

#include "page_table.cdef"

enum { DONE = -1 };

int64_t minisgl_write_page_table(int32_t *page_table, int64_t num_rows, int64_t row_stride, int64_t row_width,
                                 const int32_t *rows, const int32_t *page_idxs, const int32_t *pages,
                                 int64_t num_entries, int64_t page_size)
{
    for (int64_t i = 0; i < num_entries; i++) {
        int64_t row = rows[i], page_idx = page_idxs[i], page = pages[i];
        if (row < 0 || row >= num_rows || page_idx < 0 || (page_idx + 1) * page_size > row_width || page < 0
            || (page + 1) * page_size > (int64_t)INT32_MAX + 1)
            return i;
    }
    for (int64_t i = 0; i < num_entries; i++) {
        int32_t *line = page_table + rows[i] * row_stride + page_idxs[i] * page_size;
        int64_t first = pages[i] * page_size;
        for (int64_t j = 0; j < page_size; j++)
            line[j] = (int32_t)(first + j);
    }
    return DONE;
}

int64_t minisgl_read_page_table(const int32_t *page_table, int64_t num_rows, int64_t row_stride, int64_t row_width,
                                const int32_t *rows, const int32_t *positions, int64_t num_tokens,
                                int32_t *slots)
{
    for (int64_t i = 0; i < num_tokens; i++)
        if (rows[i] < 0 || rows[i] >= num_rows || positions[i] < 0 || positions[i] >= row_width)
            return i;
    for (int64_t i = 0; i < num_tokens; i++)
        slots[i] = page_table[rows[i] * row_stride + positions[i]];
    return DONE;
}
