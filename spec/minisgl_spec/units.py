"""The units everything is counted in: tokens, slots, pages and rows, and how they convert.

A token is one position of a sequence; a slot is one token's place in the KV pool; a page is
`page_size` consecutive slots, page `p` being slots `p * page_size : (p + 1) * page_size`; a row is
one request's line of the page table.

This file converts and rounds; it owns nothing and checks nothing.
Chapter: spec/01-pages-and-slots.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Token = int
Slot = int
Page = int
Row = int
Uid = int

Tokens = Sequence[Token]
Slots = Sequence[Slot]
Pages = Sequence[Page]


def align_down(length: int, page_size: int) -> int:
    """Return the largest multiple of `page_size` that is at most `length`."""
    return length - length % page_size


def align_up(length: int, page_size: int) -> int:
    """Return the smallest multiple of `page_size` that is at least `length`."""
    return div_ceil(length, page_size) * page_size


def div_ceil(length: int, page_size: int) -> int:
    """Return how many pages `length` slots need."""
    return -(-length // page_size)


def pages_to_slots(pages: Iterable[Page], page_size: int) -> tuple[Slot, ...]:
    """Return the slots of `pages`, page after page, each in slot order."""
    return tuple([page * page_size + offset for page in pages for offset in range(page_size)])


def slots_to_pages(slots: Slots, page_size: int) -> tuple[Page, ...]:
    """Return the page of every `page_size`-th slot; `slots` start at a page boundary."""
    return tuple([slot // page_size for slot in slots[::page_size]])
