"""The rows of requests: who holds which, and how page table and token pool are written.

A row is one request's line of `page_table` (of slots) and of `token_pool` (of tokens). Rows are
handed out last in, first out. A row is a whole number of pages wide, so that the last page of the
longest sequence fits; row `num_rows` is the dummy that padding reads and writes.

Taking and giving rows is host work; the two `write_` functions touch device memory and belong inside
stream work. This file never decides when a row may be used again: the scheduler does.
Chapter: spec/01-pages-and-slots.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch

from minisgl_ref.checks import CheckLevel, broken
from minisgl_ref.kvcache.base import TOKEN_BYTES
from minisgl_spec.errors import ContractError
from minisgl_spec.units import align_up


class TableManager:
    """The rows of a page table and of a token pool, on one device.

    page_table:  [num_rows + 1, row_width] i32, of slots; a position never written names the dummy slot.
    token_pool:  [num_rows + 1, row_width] i32, of token ids; 0 where never written.
    row_width:   max_seq_len, rounded up to whole pages.
    free_rows:   the last one is handed out next.
    level:       at OFF a row given back twice goes unnoticed.
    """

    def __init__(
        self,
        num_rows: int,
        max_seq_len: int,
        page_size: int,
        num_pages: int,
        device: torch.device | str = "cpu",
        level: CheckLevel = CheckLevel.LOCAL,
    ) -> None:
        self.num_rows = num_rows
        self.page_size = page_size
        self.row_width = align_up(max_seq_len, page_size)
        self.level = level
        self.free_rows = list(range(num_rows))
        self.dummy_row = num_rows
        # [num_pages + 1, page_size] the slots of each page: a row is written by copying lines of it
        slots = torch.arange((num_pages + 1) * page_size, dtype=torch.int32, device=device)
        self._slots_of_page = slots.view(num_pages + 1, page_size)
        self.dummy_slot = int(self._slots_of_page[num_pages, 0])
        shape = (num_rows + 1, self.row_width)
        self.page_table = torch.full(shape, self.dummy_slot, dtype=torch.int32, device=device)
        self.token_pool = torch.zeros(shape, dtype=torch.int32, device=device)
        self._host = _HostRows(self) if self.page_table.device.type == "cpu" else None

    def allocate(self) -> int:
        """Take a row.

        Mutates: free_rows.
        Keeps:   rows_partitioned.
        Raises:  ContractError if no row is free.
        Spec:    01-pages-and-slots.md#rows
        """
        if not self.free_rows:
            raise ContractError("allocate row", "a free row", {"free_rows": 0, "num_rows": self.num_rows})
        return self.free_rows.pop()

    def give_back(self, row: int) -> None:
        """Make a row free; it is the next one to be handed out.

        Mutates: free_rows.
        Keeps:   rows_partitioned, released_once.
        Raises:  InvariantError at LOCAL and FULL if the row is free already, or is no row.
        Spec:    06-decode-and-release.md#release
        """
        if self.level and (row in self.free_rows or not 0 <= row < self.num_rows):
            raise broken("released_once", row=row, free_rows=self.free_rows, num_rows=self.num_rows)
        self.free_rows.append(row)

    def write_row_pages(self, row: int, first_page_idx: int, pages: Sequence[int]) -> None:
        """Map positions first_page_idx * page_size onwards of a row to the slots of `pages`.

        Args:
            first_page_idx:  how many pages of the row come before.
            pages:           [n] page numbers; nothing is written for none.

        Mutates: page_table[row, first_page_idx * page_size : (first_page_idx + n) * page_size].
        Raises:  ContractError if they do not fit into the row.
        Spec:    01-pages-and-slots.md#rows
        """
        start = first_page_idx * self.page_size
        end = start + len(pages) * self.page_size
        if not 0 <= start <= end <= self.row_width:
            self._refuse_write("write_row_pages", row, start, end)
        if not pages:
            return
        if self._host is not None:
            self._host.write_row_pages(row, start, end, pages)
            return
        lines = torch.tensor(pages, dtype=torch.int64).to(self.page_table.device, non_blocking=True)
        self.page_table[row, start:end] = self._slots_of_page[lines].view(-1)

    def write_tokens(self, row: int, start: int, key: bytes) -> None:
        """Put the tokens of `key` at positions `start` onwards of a row.

        Mutates: token_pool[row, start : start + n] for the n tokens of the key.
        Raises:  ContractError if they do not fit into the row.
        Spec:    01-pages-and-slots.md#rows
        """
        end = start + len(key) // TOKEN_BYTES
        if not 0 <= start <= end <= self.row_width:
            self._refuse_write("write_tokens", row, start, end)
        if self._host is not None:
            self._host.write_tokens(row, start, end, key)
        elif key:
            tokens = torch.frombuffer(bytearray(key), dtype=torch.int32)
            self.token_pool[row, start:end] = tokens.to(self.token_pool.device, non_blocking=True)

    def _refuse_write(self, operation: str, row: int, start: int, end: int) -> NoReturn:
        raise ContractError(
            operation,
            "positions inside the row",
            {"row": row, "start": start, "end": end, "row_width": self.row_width},
        )


class _HostRows:
    """The same memory as numpy sees it: a 24-page row costs 1 microsecond, in torch operations 18."""

    def __init__(self, table: TableManager) -> None:
        self._page_size = table.page_size
        self._slots_of_page: npt.NDArray[np.int32] = table._slots_of_page.numpy()
        self._token_pool: npt.NDArray[np.int32] = table.token_pool.numpy()
        page_table: npt.NDArray[np.int32] = table.page_table.numpy()
        self._row_pages = page_table.reshape(
            table.num_rows + 1, table.row_width // table.page_size, table.page_size
        )

    def write_row_pages(self, row: int, start: int, end: int, pages: Sequence[int]) -> None:
        lines = self._row_pages[row, start // self._page_size : end // self._page_size]
        self._slots_of_page.take(pages, axis=0, out=lines)

    def write_tokens(self, row: int, start: int, end: int, key: bytes) -> None:
        self._token_pool[row, start:end] = np.frombuffer(key, dtype=np.int32)
