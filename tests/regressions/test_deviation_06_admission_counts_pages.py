"""Admission counted tokens where allocation counts pages (deviation 6).

Upstream added up lengths in tokens; allocation rounds each request up to whole pages. Nine requests of
17 tokens on 11 pages of 16 were admitted together, and the scheduler died of "Cannot evict".
Broken: admitted_requests_fit.
"""

from __future__ import annotations

import pytest

from minisgl_ref.testing import EngineUnderTest
from minisgl_spec.errors import ContractError

from .engines import broken_rules, events_of, ours, run_until_idle, undone

ELEVEN_PAGES = {"page_size": 16, "num_pages": 11, "num_rows": 9, "token_budget": 999}


def nine_requests_of_two_pages(target: EngineUnderTest) -> EngineUnderTest:
    for uid in range(9):
        target.submit(uid, (uid,) * 17, 1)
    return target


def test_as_many_are_admitted_as_fit_in_pages() -> None:
    """Five requests of two pages fit on eleven. (05-prefill-and-chunking.md#admission)"""
    target = nine_requests_of_two_pages(ours(**ELEVEN_PAGES))

    target.step()

    assert [event["uid"] for event in events_of(target, "admit")] == [0, 1, 2, 3, 4]
    assert events_of(target, "refuse") == [
        {"do": "refuse", "uid": 5, "why": "no_room", "need": 12, "available": 11}
    ]


def test_everybody_is_served_in_the_end() -> None:
    """The others wait for the pages of the first. (05-prefill-and-chunking.md)"""
    target = nine_requests_of_two_pages(ours(**ELEVEN_PAGES))

    told = run_until_idle(target)

    assert [(uid, len(line)) for uid, line in sorted(told.items())] == [(uid, 2) for uid in range(9)]


def test_undone_more_are_admitted_than_fit_and_the_scheduler_dies() -> None:
    """The judges see it in the step that admits them, whether or not it completes. (deviations.md)"""
    target = nine_requests_of_two_pages(undone(6, **ELEVEN_PAGES))

    with pytest.raises(ContractError) as refused:
        target.step()

    assert str(refused.value).startswith("allocate: need num_pages <= available_pages; got num_pages=18")
    assert broken_rules(target) == ["admitted_requests_fit"]
