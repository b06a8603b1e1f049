"""Claims about pages, slots and rows: how they convert, and in which order the pools hand them out.

Guide: spec/01-pages-and-slots.md
"""

from __future__ import annotations

import pytest

from minisgl_spec.errors import ContractError
from minisgl_spec.page_pool import PagePool, RowPool
from minisgl_spec.requests import Config
from minisgl_spec.units import align_down, align_up, div_ceil, pages_to_slots, slots_to_pages


@pytest.mark.parametrize(
    ("length", "page_size", "rounded"),
    [(0, 4, (0, 0, 0)), (1, 4, (0, 4, 1)), (4, 4, (4, 4, 1)), (5, 4, (4, 8, 2)), (7, 1, (7, 7, 7))],
)
def test_lengths_are_rounded_to_whole_pages(
    length: int, page_size: int, rounded: tuple[int, int, int]
) -> None:
    """align_down, align_up and div_ceil round to pages. (01-pages-and-slots.md#slots-and-pages)"""
    assert (
        align_down(length, page_size),
        align_up(length, page_size),
        div_ceil(length, page_size),
    ) == rounded


def test_a_page_is_consecutive_slots() -> None:
    """Page p is slots p * page_size : (p + 1) * page_size. (01-pages-and-slots.md#slots-and-pages)"""
    assert pages_to_slots((2, 0), 3) == (6, 7, 8, 0, 1, 2)


def test_slots_name_their_pages() -> None:
    """The last page may be partial. (01-pages-and-slots.md#slots-and-pages)"""
    assert slots_to_pages((6, 7, 8, 0, 1), 3) == (2, 0)


def test_pages_are_handed_out_first_in_first_out() -> None:
    """The page that has been free the longest goes first. (01-pages-and-slots.md#the-pools)"""
    pool = PagePool(4)
    pool.give(pool.take(2))

    taken = pool.take(3)

    assert (taken, pool.free_pages) == ((2, 3, 0), (1,))


def test_rows_are_handed_out_last_in_first_out() -> None:
    """The row that was given back last goes first. (01-pages-and-slots.md#the-pools)"""
    pool = RowPool(3)
    first, second = pool.take(), pool.take()
    pool.give(first)

    taken = pool.take()

    assert (first, second, taken, pool.free_rows) == (2, 1, 2, (0,))


@pytest.mark.parametrize("count", [-1, 3])
def test_more_pages_than_are_free_are_refused(count: int) -> None:
    """A pool gives what it has or nothing. (01-pages-and-slots.md#the-pools)"""
    pool = PagePool(2)

    with pytest.raises(ContractError) as refused:
        pool.take(count)

    assert (refused.value.got, pool.free_pages) == ({"count": count, "free": 2}, (0, 1))


@pytest.mark.parametrize("pages", [(0,), (2,), (1, 1)])
def test_a_page_that_was_not_taken_cannot_be_given_back(pages: tuple[int, ...]) -> None:
    """A page that is free, does not exist, or is named twice is refused. (01-pages-and-slots.md#the-pools)"""
    pool = PagePool(2)
    pool.free_pages = (0,)

    with pytest.raises(ContractError, match="give: need taken pages, each once"):
        pool.give(pages)

    assert pool.free_pages == (0,)


def test_a_row_that_was_not_taken_cannot_be_given_back() -> None:
    """Two requests can never share a row by a double release. (01-pages-and-slots.md#the-pools)"""
    pool = RowPool(2)

    with pytest.raises(ContractError, match="give_row: need a taken row; got row=1"):
        pool.give(1)


def test_no_row_is_left_to_take() -> None:
    """An empty pool of rows refuses. (01-pages-and-slots.md#the-pools)"""
    pool = RowPool(1)
    pool.take()

    with pytest.raises(ContractError, match="take_row: need a free row; got free=0, num_rows=1"):
        pool.take()


@pytest.mark.parametrize(("page_size", "row_width"), [(1, 10), (4, 12), (16, 16)])
def test_a_row_is_whole_pages_wide(page_size: int, row_width: int) -> None:
    """The last page of the longest request still fits its row. (01-pages-and-slots.md#rows)"""
    assert Config(page_size=page_size, max_seq_len=10).row_width == row_width
