"""write_page_table and read_page_table in C: indices are checked in C before the first slot is written.

When C refuses, the reference's check says why in words. Definition: reference.py. Source: page_table.c
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.build import load
from minisgl_kernels.c_calls import pointer
from minisgl_kernels.contract import check_disjoint, check_on_cpu
from minisgl_kernels.page_table import reference

DONE = -1


def write_page_table(
    page_table: Tensor, rows: Tensor, page_idxs: Tensor, pages: Tensor, page_size: int
) -> None:
    """Map pages of rows to the slots of pages (see reference.py)."""
    reference.check_write_shapes(page_table, rows, page_idxs, pages, page_size)
    check_on_cpu("write_page_table", page_table)
    if page_table.stride(1) != 1:
        reference.write_page_table(page_table, rows, page_idxs, pages, page_size)
        return
    read = {"rows": rows, "page_idxs": page_idxs, "pages": pages}
    check_disjoint("write_page_table", {"page_table": page_table}, read)
    library = load("page_table")
    entries = [tensor.contiguous() for tensor in (rows, page_idxs, pages)]
    outcome = library.lib.minisgl_write_page_table(
        pointer(library, "int32_t *", page_table),
        page_table.shape[0],
        page_table.stride(0),
        page_table.shape[1],
        *(pointer(library, "int32_t *", tensor) for tensor in entries),
        rows.shape[0],
        page_size,
    )
    if outcome != DONE:
        reference.check_write(page_table, rows, page_idxs, pages, page_size)


def read_page_table(page_table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Read the slots of positions of rows (see reference.py)."""
    reference.READ.check(page_table, rows, positions)
    check_on_cpu("read_page_table", page_table)
    if page_table.stride(1) != 1:
        return reference.read_page_table(page_table, rows, positions)
    library = load("page_table")
    rows, positions = rows.contiguous(), positions.contiguous()
    slots = torch.empty(rows.shape[0], dtype=torch.int32)
    outcome = library.lib.minisgl_read_page_table(
        pointer(library, "int32_t *", page_table),
        page_table.shape[0],
        page_table.stride(0),
        page_table.shape[1],
        pointer(library, "int32_t *", rows),
        pointer(library, "int32_t *", positions),
        rows.shape[0],
        pointer(library, "int32_t *", slots),
    )
    if outcome != DONE:
        reference.check_read(page_table, rows, positions)
    return slots
