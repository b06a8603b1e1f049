"""Claims about rows: who holds which, how wide one is, and what a write changes.

Guide: tests/README.md
"""

from __future__ import annotations

from array import array

import pytest
import torch

from minisgl_ref.checks import CheckLevel
from minisgl_ref.scheduler.table import TableManager
from minisgl_spec.errors import ContractError, InvariantError


def key_of(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def table_of(num_rows: int = 2, level: CheckLevel = CheckLevel.LOCAL) -> TableManager:
    """Rows of three pages of two slots, in a pool of eight pages."""
    return TableManager(num_rows, 5, 2, 8, level=level)


def test_a_row_is_a_whole_number_of_pages_wide():
    """The last page of the longest sequence fits. (deviations.md)"""
    table = table_of()

    assert (table.row_width, tuple(table.page_table.shape), tuple(table.token_pool.shape)) == (
        6,
        (3, 6),
        (3, 6),
    )


def test_what_was_never_written_names_the_dummy_slot():
    """The dummy row and every unwritten position lead to the dummy page. (01-pages-and-slots.md#rows)"""
    table = table_of()

    assert (table.dummy_row, table.dummy_slot, table.page_table.unique().tolist()) == (2, 16, [16])


def test_rows_are_handed_out_last_in_first_out():
    """A row is reused as soon as it can be. (01-pages-and-slots.md#rows)"""
    table = table_of(3)
    first, second = table.allocate(), table.allocate()

    table.give_back(first)

    assert (first, second, table.allocate(), table.free_rows) == (2, 1, 2, [0])


def test_without_a_free_row_an_allocation_is_refused():
    """The dummy row is never handed out. (01-pages-and-slots.md#rows)"""
    table = table_of(1)
    table.allocate()

    with pytest.raises(ContractError) as refused:
        table.allocate()

    assert (str(refused.value), table.free_rows) == (
        "allocate row: need a free row; got free_rows=0, num_rows=1.",
        [],
    )


@pytest.mark.parametrize(
    ("row", "fact"),
    [
        (0, "row=0, free_rows=[0], num_rows=2"),
        (2, "row=2, free_rows=[0], num_rows=2"),
    ],
)
def test_a_row_given_back_twice_or_no_row_is_noticed(row: int, fact: str):
    """A row is given back exactly once; the dummy row never. (invariants.md)"""
    table = table_of()
    table.allocate()

    with pytest.raises(InvariantError) as broken:
        table.give_back(row)

    (found,) = broken.value.violations
    assert (found.rule, found.fact, table.free_rows) == ("released_once", fact, [0])


def test_with_checks_off_a_row_given_back_twice_goes_unnoticed():
    """OFF is for benchmarks, and for faults that other judges must find. (decisions/011-the-zoo-ships.md)"""
    table = table_of(1, CheckLevel.OFF)
    row = table.allocate()
    table.give_back(row)

    table.give_back(row)

    assert table.free_rows == [0, 0]


def test_pages_are_written_as_slots():
    """Page p is slots p * page_size and on; nothing else changes. (01-pages-and-slots.md#rows)"""
    table = table_of()

    table.write_row_pages(1, 1, [7, 0])

    assert table.page_table.tolist() == [[16] * 6, [16, 16, 14, 15, 0, 1], [16] * 6]


def test_tokens_are_written_where_they_stand():
    """token_pool[row, position] is the token at that position. (01-pages-and-slots.md#rows)"""
    table = table_of()

    table.write_tokens(0, 2, key_of(5, -1, 9))

    assert table.token_pool.tolist() == [[0, 0, 5, -1, 9, 0], [0] * 6, [0] * 6]


def test_writing_nothing_changes_nothing():
    """An empty list of pages and an empty key are no mistake. (01-pages-and-slots.md#rows)"""
    table = table_of()

    table.write_row_pages(0, 3, [])
    table.write_tokens(0, 6, b"")

    assert (table.page_table.unique().tolist(), table.token_pool.unique().tolist()) == ([16], [0])


def test_a_write_past_the_row_is_refused():
    """The next row belongs to somebody else. (deviations.md)"""
    table = table_of()

    with pytest.raises(ContractError) as pages:
        table.write_row_pages(0, 2, [3, 4])
    with pytest.raises(ContractError) as tokens:
        table.write_tokens(0, -1, key_of(1))

    assert [str(pages.value), str(tokens.value)] == [
        "write_row_pages: need positions inside the row; got row=0, start=4, end=8, row_width=6.",
        "write_tokens: need positions inside the row; got row=0, start=-1, end=0, row_width=6.",
    ]
    assert (table.page_table.unique().tolist(), table.token_pool.unique().tolist()) == ([16], [0])


def test_a_page_outside_the_pool_is_not_written():
    """A wrong page number never becomes another page's slot. (01-pages-and-slots.md#rows)"""
    table = table_of()

    with pytest.raises(IndexError):
        table.write_row_pages(0, 0, [9])

    assert table.page_table.unique().tolist() == [16]


@pytest.mark.gpu
def test_rows_of_a_gpu_are_written_alike():
    """The same values by torch operations on the device. (01-pages-and-slots.md#rows)"""
    table = TableManager(2, 5, 2, 8, device="cuda")

    table.write_row_pages(1, 1, [7, 0])
    table.write_tokens(0, 2, key_of(5, -1, 9))

    assert table.page_table.cpu().tolist() == [[16] * 6, [16, 16, 14, 15, 0, 1], [16] * 6]
    assert table.token_pool.cpu().tolist() == [[0, 0, 5, -1, 9, 0], [0] * 6, [0] * 6]
    assert table.page_table.dtype == torch.int32
