"""page_table: rows written from pages and read as slots, against a loop in plain Python."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from minisgl_kernels.backends import Ops
from minisgl_spec.errors import ContractError

from .strides import apart

UNTOUCHED = -7


@dataclass(frozen=True)
class Case:
    """A table's measures and the entries (row, page_idx, page) that are written, no place twice.

    strided: neither the table's rows nor the entries are contiguous.
    """

    num_rows: int
    pages_per_row: int
    page_size: int
    entries: tuple[tuple[int, int, int], ...]
    strided: bool = False


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_rows, pages_per_row = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    places = st.tuples(st.integers(0, num_rows - 1), st.integers(0, pages_per_row - 1))
    chosen = draw(st.lists(places, max_size=12, unique=True))
    pages = draw(st.lists(st.integers(0, 1000), min_size=len(chosen), max_size=len(chosen)))
    entries = tuple((*place, page) for place, page in zip(chosen, pages, strict=True))
    return Case(num_rows, pages_per_row, draw(st.sampled_from([1, 3, 16, 64])), entries, draw(st.booleans()))


def i32(values: list[int], strided: bool = False) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.int32)
    return apart(tensor, poison=-1) if strided else tensor


def columns(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    rows, page_idxs, pages = ([entry[field] for entry in case.entries] for field in range(3))
    return i32(rows, case.strided), i32(page_idxs, case.strided), i32(pages, case.strided)


def empty_tables(case: Case) -> tuple[Tensor, Tensor]:
    """Two tables, one beside the other or, if strided, among it; each larger than the case needs."""
    shape = (case.num_rows + 2, case.pages_per_row * case.page_size + 3)
    both = torch.full((*shape, 2) if case.strided else (2, *shape), UNTOUCHED, dtype=torch.int32)
    one, other = both.unbind(-1 if case.strided else 0)
    return one, other


@given(case=cases())
@example(case=Case(1, 1, 1, ()))
@example(case=Case(2, 3, 16, ((1, 2, 7),)))
@example(case=Case(2, 3, 64, ((1, 2, 7), (0, 0, 3)), strided=True))
@example(case=Case(3, 2, 1, ((2, 1, 0), (0, 1, 5)), strided=True))
def test_page_table_rows_are_written_where_they_belong(ops: Ops, case: Case) -> None:
    """Whole pages at their place, everything else unchanged. (page_table/reference.py)"""
    (whole, other), size = empty_tables(case), case.page_size
    expected = whole.clone()
    for row, page_idx, page in case.entries:
        expected[1 + row, page_idx * size : (page_idx + 1) * size] = i32(
            list(range(page * size, (page + 1) * size))
        )

    ops.write_page_table(whole[1:-1, :-3], *columns(case), size)

    assert torch.equal(whole, expected)
    assert bool((other == UNTOUCHED).all())


@given(case=cases(), picks=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), max_size=20))
@example(case=Case(1, 1, 1, ()), picks=[])
@example(case=Case(3, 2, 64, (), strided=True), picks=[(2, 127), (0, 0), (2, 127)])
def test_page_table_is_read_where_it_is_asked(ops: Ops, case: Case, picks: list[tuple[int, int]]) -> None:
    """slots[i] = page_table[rows[i], positions[i]]. (page_table/reference.py)"""
    table = torch.arange(case.num_rows * case.pages_per_row * case.page_size, dtype=torch.int32)
    table = table.view(case.num_rows, -1)
    table = apart(table, poison=UNTOUCHED) if case.strided else table
    where = [(row % table.shape[0], position % table.shape[1]) for row, position in picks]

    rows, positions = ([place[axis] for place in where] for axis in range(2))

    slots = ops.read_page_table(table, i32(rows, case.strided), i32(positions, case.strided))

    assert (slots.dtype, slots.tolist()) == (torch.int32, [int(table[place]) for place in where])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((2, 0, 0), "need every rows in 0:num_rows; got rows[1]=2, num_rows=2."),
        ((-1, 0, 0), "need every rows in 0:num_rows; got rows[1]=-1, num_rows=2."),
        ((0, 3, 0), "got page_idxs[1]=3, row_width / page_size=3."),
        ((0, 0, -1), "got pages[1]=-1, 2**31 / page_size=536870912."),
        ((0, 0, 2**29), "got pages[1]=536870912, 2**31 / page_size=536870912."),
    ],
)
def test_page_table_entries_out_of_range_are_refused(
    ops: Ops, entry: tuple[int, int, int], message: str
) -> None:
    """A row, a page index or a page that does not exist: nothing is written. (refusal_changes_nothing)"""
    case = Case(2, 3, 4, ((1, 1, 5), entry))
    table = empty_tables(case)[0][1:-1, :-3]

    with pytest.raises(ContractError) as refusal:
        ops.write_page_table(table, *columns(case), case.page_size)

    assert message in str(refusal.value)
    assert bool((table == UNTOUCHED).all())


def test_page_table_positions_out_of_range_are_refused(ops: Ops) -> None:
    """The message shows the position, where it stands and the limit."""
    with pytest.raises(ContractError) as refusal:
        ops.read_page_table(torch.zeros(2, 4, dtype=torch.int32), i32([0, 1]), i32([3, 4]))

    assert str(refusal.value) == (
        "read_page_table: need every positions in 0:row_width; got positions[1]=4, row_width=4."
    )
