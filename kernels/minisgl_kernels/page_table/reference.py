"""write_page_table: page_table[rows[i], page_idxs[i] * page_size + j] = pages[i] * page_size + j, all i, j.

page_table             [num_rows, row_width] i32 of slots, written in place; all else unchanged
rows, page_idxs, pages [num_entries] i32: page pages[i] becomes page number page_idxs[i] of row rows[i], whole
page_size              slots per page; j runs over 0:page_size. An entry named twice is undefined.

read_page_table: slots[i] = page_table[rows[i], positions[i]] for every i.

rows, positions        [num_tokens] i32, repeats allowed
slots                  [num_tokens] i32, new; no argument is changed
Exact: integers. Moves 4 * page_size bytes per entry, 4 per token.
Versions: page_table.c (one loop), triton_kernel.py and page_table.cu (one thread per slot).
Run: pytest tests/kernels -k page_table
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.contract import Contract, check_disjoint, check_in_range
from minisgl_spec.errors import ContractError

WRITE = Contract(
    "write_page_table",
    page_table="[num_rows, row_width] i32",
    rows="[num_entries] i32",
    page_idxs="[num_entries] i32",
    pages="[num_entries] i32",
)
READ = Contract(
    "read_page_table",
    page_table="[num_rows, row_width] i32",
    rows="[num_tokens] i32",
    positions="[num_tokens] i32",
)
MOST_SLOTS = 2**31  # a slot is an i32


def write_page_table(
    page_table: Tensor, rows: Tensor, page_idxs: Tensor, pages: Tensor, page_size: int
) -> None:
    """Map pages of rows to the slots of pages.

    Mutates: page_table, at the positions of the entries only.
    Raises:  ContractError for a shape, dtype, device, overlap or index out of range; nothing is written.
    """
    check_write(page_table, rows, page_idxs, pages, page_size)
    offsets = torch.arange(page_size, device=page_table.device)
    columns = page_idxs.long()[:, None] * page_size + offsets
    page_table[rows.long()[:, None], columns] = (pages.long()[:, None] * page_size + offsets).int()


def read_page_table(page_table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Read the slots of positions of rows.

    Raises: ContractError for a shape, dtype, device or index out of range.
    """
    check_read(page_table, rows, positions)
    return page_table[rows.long(), positions.long()]


def check_write(page_table: Tensor, rows: Tensor, page_idxs: Tensor, pages: Tensor, page_size: int) -> None:
    """Refuse arguments for which write_page_table is not defined."""
    check_write_shapes(page_table, rows, page_idxs, pages, page_size)
    read = {"rows": rows, "page_idxs": page_idxs, "pages": pages}
    check_disjoint("write_page_table", {"page_table": page_table}, read)
    check_in_range("write_page_table", "rows", rows, "num_rows", page_table.shape[0])
    pages_per_row = page_table.shape[1] // page_size
    check_in_range("write_page_table", "page_idxs", page_idxs, "row_width / page_size", pages_per_row)
    check_in_range("write_page_table", "pages", pages, "2**31 / page_size", MOST_SLOTS // page_size)


def check_write_shapes(
    page_table: Tensor, rows: Tensor, page_idxs: Tensor, pages: Tensor, page_size: int
) -> None:
    """Refuse what can be refused without looking at a value."""
    WRITE.check(page_table, rows, page_idxs, pages)
    if page_size < 1:
        raise ContractError("write_page_table", "page_size >= 1", {"page_size": page_size})


def check_read(page_table: Tensor, rows: Tensor, positions: Tensor) -> None:
    """Refuse arguments for which read_page_table is not defined."""
    READ.check(page_table, rows, positions)
    check_in_range("read_page_table", "rows", rows, "num_rows", page_table.shape[0])
    check_in_range("read_page_table", "positions", positions, "row_width", page_table.shape[1])
