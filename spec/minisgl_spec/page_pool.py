"""The page pool and the row pool: what is free, and in which order it is handed out.

Free pages are handed out first in, first out; free rows last in, first out, so that a row is
reused as soon as it can be. Which page holds what is the tree's and the requests' business.

Nothing here knows of slots, tokens or locks.
Chapter: spec/01-pages-and-slots.md
"""

from __future__ import annotations

from collections.abc import Iterable

from minisgl_spec.errors import ContractError
from minisgl_spec.units import Page, Row


class PagePool:
    """The free pages of a pool of `num_pages`."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.free_pages: tuple[Page, ...] = tuple(range(num_pages))

    def take(self, count: int) -> tuple[Page, ...]:
        """Take the `count` pages that have been free the longest."""
        # CHECK
        if not 0 <= count <= len(self.free_pages):
            raise ContractError(
                "take", "0 <= count <= free pages", {"count": count, "free": len(self.free_pages)}
            )
        # CHANGE
        taken, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        # RETURN
        return taken

    def give(self, pages: Iterable[Page]) -> None:
        """Give pages back; each was taken and not given back since."""
        pages = tuple(pages)
        # CHECK
        wrong = [page for page in pages if page in self.free_pages or not 0 <= page < self.num_pages]
        if wrong or len(set(pages)) != len(pages):
            raise ContractError("give", "taken pages, each once", {"pages": pages, "already_free": wrong})
        # CHANGE
        self.free_pages = self.free_pages + pages


class RowPool:
    """The free rows of a page table of `num_rows`."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.free_rows: tuple[Row, ...] = tuple(range(num_rows))

    def take(self) -> Row:
        """Take the row that was given back last."""
        # CHECK
        if not self.free_rows:
            raise ContractError("take_row", "a free row", {"free": 0, "num_rows": self.num_rows})
        # CHANGE
        row, self.free_rows = self.free_rows[-1], self.free_rows[:-1]
        # RETURN
        return row

    def give(self, row: Row) -> None:
        """Give a row back; it was taken and not given back since."""
        # CHECK
        if row in self.free_rows or not 0 <= row < self.num_rows:
            raise ContractError("give_row", "a taken row", {"row": row, "free_rows": self.free_rows})
        # CHANGE
        self.free_rows = (*self.free_rows, row)
