"""A row was narrower than the pages it maps (deviation 7).

Upstream rounded the width of a row up to a multiple of 32, and pages may have 64 slots: the last page of
a long request was written past the end of its row. Broken: rows_are_wide_enough.
"""

from __future__ import annotations

import pytest

from .engines import broken_rules, expected_outputs, ours, run_until_idle, undone

WIDE_PAGES = {"page_size": 64, "num_pages": 2, "max_seq_len": 80}


@pytest.mark.parametrize(("page_size", "row_width"), [(64, 128), (3, 81), (16, 80), (1, 80)])
def test_a_row_is_whole_pages_wide(page_size: int, row_width: int) -> None:
    """max_seq_len rounded up to pages. (01-pages-and-slots.md)"""
    target = ours(page_size=page_size, max_seq_len=80)

    assert target.view().row_width == row_width


def test_the_last_page_of_the_longest_request_fits() -> None:
    """60 prompt tokens and 15 outputs are on two pages of 64. (01-pages-and-slots.md)"""
    target = ours(**WIDE_PAGES)
    target.submit(1, (1,) * 60, 15)

    told = run_until_idle(target)

    assert told[1] == [*expected_outputs(target, (1,) * 60, 15), "length"]


def test_undone_a_row_is_no_whole_number_of_pages() -> None:
    """The judges see it before anything runs. (deviations.md)"""
    assert broken_rules(undone(7, **WIDE_PAGES)) == ["rows_are_wide_enough"]
    assert broken_rules(undone(7, page_size=3, max_seq_len=32)) == ["rows_are_wide_enough"]


def test_undone_the_last_page_is_written_past_the_row() -> None:
    """Positions 64:128 of a row of 96. (deviations.md)"""
    target = undone(7, **WIDE_PAGES)
    target.submit(1, (1,) * 60, 15)

    with pytest.raises(IndexError, match=r"positions 64:128 of row 3 are outside its width 96"):
        run_until_idle(target)
