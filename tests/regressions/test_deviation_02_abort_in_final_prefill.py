"""An abort during the final prefill cached and released a request twice (deviation 2).

Upstream put a request among the decoding ones when its prefill was launched, so the abort released
it; the prefill's result then cached it again, freed pages that the tree owned and locked the new node
for ever. Broken: in_flight_requests_are_held at the abort, pages_partitioned with the result.
"""

from __future__ import annotations

import pytest

from minisgl_ref.testing import EngineUnderTest
from minisgl_spec.errors import ContractError
from minisgl_spec.messages import Reply

from .engines import broken_rules, events_of, ours, undone

PROMPT = (1, 2, 3, 4, 5, 6)


def abort_in_final_prefill(target: EngineUnderTest) -> EngineUnderTest:
    target.submit(1, PROMPT, 4)
    target.step()
    target.abort(1)
    return target


def test_an_abort_in_flight_only_marks() -> None:
    """Row, pages and lock stay until the batch is processed. (06-decode-and-release.md#abort)"""
    target = abort_in_final_prefill(ours())

    (request,) = target.view().requests

    assert (request.phase, request.row, request.num_in_flight) == ("retired", 3, 1)
    assert request.handle is not None
    assert request.handle.is_locked


def test_it_is_released_once_when_its_batch_is_processed() -> None:
    """The prompt was computed, so it is cached; there is one reply. (06-decode-and-release.md#abort)"""
    target = abort_in_final_prefill(ours())

    replies = target.step()

    assert replies == [Reply(1, None, "abort", 0)]
    assert events_of(target, "insert", "release") == [
        {"do": "release", "uid": 1, "row": 3, "insert_len": 6, "prefix_len": 0, "given_up": []}
    ]
    assert target.view().cache.evictable_size == 6
    assert target.is_idle()


def test_undone_a_batch_in_flight_holds_what_was_given_back() -> None:
    """The judges see it at the abort. (deviations.md)"""
    target = abort_in_final_prefill(undone(2))

    assert broken_rules(target) == ["in_flight_requests_are_held", "writes_are_private"]


def test_undone_its_pages_are_free_and_cached_at_once_and_locked_for_ever() -> None:
    """What upstream is left with, though nobody holds anything any more. (deviations.md)"""
    target = abort_in_final_prefill(undone(2))

    target.step()

    view = target.view()
    assert broken_rules(target) == ["pages_partitioned"]
    assert set(range(6)) <= set(view.free_pages)
    assert (view.requests, view.cache.protected_size) == ((), 6)


def test_undone_an_abort_after_a_hit_kills_the_scheduler() -> None:
    """Upstream fails an assertion where the handle is unlocked a second time. (deviations.md)"""
    target = undone(2)
    target.submit(1, PROMPT, 1)
    target.step()
    target.step()

    abort_in_final_prefill(target)

    with pytest.raises(ContractError, match="unlock: need a locked handle; got node=2, is_locked=False"):
        target.step()
