"""write_page_table: one program per entry; read_page_table: one per 256 tokens. Definition: reference.py"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minisgl_kernels.page_table.reference import check_read, check_write
from minisgl_kernels.triton_calls import block_of

TOKENS = 256


@triton.jit
def _write(table, row_stride, column_stride, rows, page_idxs, pages, page_size, BLOCK: tl.constexpr):
    entry = tl.program_id(0)
    row = tl.load(rows + entry).to(tl.int64)
    page_idx = tl.load(page_idxs + entry).to(tl.int64)
    page = tl.load(pages + entry).to(tl.int64)
    at = tl.arange(0, BLOCK)
    column = page_idx * page_size + at
    tl.store(
        table + row * row_stride + column * column_stride,
        (page * page_size + at).to(tl.int32),
        mask=at < page_size,
    )


@triton.jit
def _read(table, row_stride, column_stride, rows, positions, slots, num_tokens, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = token < num_tokens
    row = tl.load(rows + token, mask=inside, other=0).to(tl.int64)
    position = tl.load(positions + token, mask=inside, other=0).to(tl.int64)
    slot = tl.load(table + row * row_stride + position * column_stride, mask=inside)
    tl.store(slots + token, slot, mask=inside)


def write_page_table(
    page_table: Tensor, rows: Tensor, page_idxs: Tensor, pages: Tensor, page_size: int
) -> None:
    """Map pages of rows to the slots of pages (see reference.py)."""
    check_write(page_table, rows, page_idxs, pages, page_size)
    if rows.shape[0]:
        _write[(rows.shape[0],)](
            page_table,
            *page_table.stride(),
            rows.contiguous(),
            page_idxs.contiguous(),
            pages.contiguous(),
            page_size,
            BLOCK=block_of(page_size),
        )


def read_page_table(page_table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Read the slots of positions of rows (see reference.py)."""
    check_read(page_table, rows, positions)
    num_tokens = rows.shape[0]
    slots = torch.empty(num_tokens, dtype=torch.int32, device=page_table.device)
    if num_tokens:
        _read[(triton.cdiv(num_tokens, TOKENS),)](
            page_table,
            *page_table.stride(),
            rows.contiguous(),
            positions.contiguous(),
            slots,
            num_tokens,
            BLOCK=TOKENS,
        )
    return slots
