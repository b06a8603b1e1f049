"""An abort as a decode finished released a request twice (deviation 3; mini-sglang PR 111).

Upstream released a decoding request at the abort, and again when the result of its last decode
arrived. With the root as its handle nothing noticed: its row was free twice, and the next two requests
shared it. Broken: in_flight_requests_are_held at the abort, released_once with the result.
"""

from __future__ import annotations

from minisgl_ref.testing import EngineUnderTest
from minisgl_spec.contracts import released_once
from minisgl_spec.messages import Reply

from .engines import broken_rules, events_of, ours, steps, undone


def abort_in_last_decode(target: EngineUnderTest) -> EngineUnderTest:
    """A prompt shorter than a page is not cached, so the handle is the root."""
    target.submit(1, (1, 2, 3), 2)
    steps(target, 2)
    target.abort(1)
    return target


def test_it_is_released_once_when_its_last_batch_is_processed() -> None:
    """The token that arrives is not delivered. (06-decode-and-release.md#abort)"""
    target = abort_in_last_decode(ours(page_size=4))

    replies = target.step()

    assert replies == [Reply(1, None, "abort", 0)]
    assert [event["uid"] for event in events_of(target, "release")] == [1]
    assert target.view().free_rows == (0, 1, 2, 3)
    assert target.is_idle()


def test_undone_a_batch_in_flight_holds_what_was_given_back() -> None:
    """The judges see it at the abort. (deviations.md)"""
    target = abort_in_last_decode(undone(3, page_size=4))

    assert broken_rules(target) == ["in_flight_requests_are_held", "writes_are_private"]


def test_undone_it_is_released_a_second_time() -> None:
    """Its page is free and cached, its row is free twice. (deviations.md)"""
    target = abort_in_last_decode(undone(3, page_size=4))
    first = events_of(target, "release")

    target.step()

    admitted = {"do": "admit", "uid": 1}
    assert list(released_once([admitted, *first, *events_of(target, "release")])) == [
        "request 1 gave back row 3 though it holds nothing"
    ]
    assert target.view().free_rows == (0, 1, 2, 3, 3)
    assert broken_rules(target) == ["pages_partitioned", "rows_partitioned"]


def test_undone_the_next_two_requests_share_a_row() -> None:
    """What the second release leads to, in silence. (deviations.md)"""
    target = abort_in_last_decode(undone(3, page_size=4))
    target.step()

    target.submit(2, (4, 5, 6), 2)
    target.submit(3, (7, 8, 9), 2)
    target.step()

    assert [request.row for request in target.view().requests] == [3, 3]
