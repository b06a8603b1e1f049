"""write_page_table and read_page_table in CUDA C++: one thread per slot.

Definition: reference.py. Source: page_table.cu
"""

from __future__ import annotations

from ctypes import c_longlong

import torch
from torch import Tensor

from minisgl_kernels.cuda_build import address, launch
from minisgl_kernels.page_table.reference import check_read, check_write

THREADS = 256


def write_page_table(
    page_table: Tensor, rows: Tensor, page_idxs: Tensor, pages: Tensor, page_size: int
) -> None:
    """Map pages of rows to the slots of pages (see reference.py)."""
    check_write(page_table, rows, page_idxs, pages, page_size)
    entries = [tensor.contiguous() for tensor in (rows, page_idxs, pages)]
    arguments = [
        address(page_table),
        *(c_longlong(stride) for stride in page_table.stride()),
        *(address(tensor) for tensor in entries),
        c_longlong(rows.shape[0]),
        c_longlong(page_size),
    ]
    grid = (-(-rows.shape[0] * page_size // THREADS), 1)
    launch("page_table", "minisgl_write_page_table", grid, THREADS, arguments, page_table.device)


def read_page_table(page_table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Read the slots of positions of rows (see reference.py)."""
    check_read(page_table, rows, positions)
    rows, positions = rows.contiguous(), positions.contiguous()
    slots = torch.empty(rows.shape[0], dtype=torch.int32, device=page_table.device)
    arguments = [
        address(page_table),
        *(c_longlong(stride) for stride in page_table.stride()),
        address(rows),
        address(positions),
        c_longlong(rows.shape[0]),
        address(slots),
    ]
    grid = (-(-rows.shape[0] // THREADS), 1)
    launch("page_table", "minisgl_read_page_table", grid, THREADS, arguments, page_table.device)
    return slots
