"""A row went on naming pages that had been freed (deviation 1; mini-sglang issue 142).

Two prompts with a common page are prefilled side by side. The second finds its pages cached by the
first; upstream freed them while its row still named them, and decoded through pages that the next
request was given. Broken: page_table_follows_handle, page_table_reads_live_pages.
"""

from __future__ import annotations

from minisgl_ref.testing import EngineUnderTest

from .engines import broken_rules, expected_outputs, ours, run_until_idle, undone

PROMPT = (1, 2, 3)


def after_two_equal_prompts(target: EngineUnderTest) -> EngineUnderTest:
    target.submit(1, PROMPT, 8)
    target.submit(2, PROMPT, 8)
    target.step()
    return target


def test_the_row_is_rewritten_before_its_duplicates_are_freed() -> None:
    """Both requests read the pages of the tree. (06-decode-and-release.md#duplicates)"""
    target = after_two_equal_prompts(ours(overlap=False, num_pages=22))

    view = target.view()

    assert [request.row_slots for request in view.requests] == [(0, 1, 2), (0, 1, 2)]
    assert view.free_pages[-3:] == (3, 4, 5)


def test_under_overlap_duplicates_are_retired_until_their_last_reader_is_processed() -> None:
    """The decode in flight may still read through the old row. (07-overlap.md#retired)"""
    target = after_two_equal_prompts(ours(num_pages=22))

    target.step()

    assert target.view().retired_pages == (3, 4, 5)
    assert run_until_idle(target)[2] == [*expected_outputs(target, PROMPT, 8)[1:], "length"]


def test_undone_the_row_names_free_pages() -> None:
    """The judges see it in the step that frees them. (deviations.md)"""
    target = after_two_equal_prompts(undone(1, overlap=False, num_pages=22))

    assert broken_rules(target) == ["page_table_follows_handle", "page_table_reads_live_pages"]


def test_undone_a_request_gets_a_wrong_token_once_the_free_list_comes_round() -> None:
    """Somebody else writes to the pages that the row reads. (deviations.md)"""
    right = after_two_equal_prompts(ours(overlap=False, num_pages=22))
    wrong = after_two_equal_prompts(undone(1, overlap=False, num_pages=22))
    right.submit(3, (4, 5, 6, 7), 2)
    wrong.submit(3, (4, 5, 6, 7), 2)

    expected = [*expected_outputs(right, PROMPT, 8)[1:], "length"]

    assert run_until_idle(right)[2] == expected
    assert run_until_idle(wrong)[2] != expected
