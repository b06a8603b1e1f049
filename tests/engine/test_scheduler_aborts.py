"""Claims about aborts: in every phase one terminal reply, no token after it, and everything given back once.

FULL checks are on: a page or row that is given back twice, or never, stops the test by its rule's name.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minisgl_ref.testing import EngineUnderTest
from minisgl_spec.errors import Refusal
from minisgl_spec.messages import Reply

from .engines import EVERY_TOKEN, engine, events_of, is_empty, outputs, request_of, run_until_idle, steps

PROMPT = (1, 2, 3, 4, 5)
ABORTED = Reply(1, None, "abort", 0)


def waiting(overlap: bool) -> EngineUnderTest:
    """Request 1 has been submitted, and no step has run."""
    target = engine(overlap=overlap)
    target.submit(1, PROMPT, 4)
    return target


def behind_a_full_table(overlap: bool) -> EngineUnderTest:
    """Request 1 waits for the row of another."""
    target = engine(overlap=overlap, num_rows=1)
    target.submit(0, (7, 8), 6)
    target.submit(1, PROMPT, 4)
    steps(target, 2)
    return target


def between_chunks(overlap: bool) -> EngineUnderTest:
    """Two of five prompt tokens are launched; under overlap they are in flight."""
    target = engine(overlap=overlap, token_budget=2)
    target.submit(1, PROMPT, 4)
    target.step()
    return target


def final_chunk_launched(overlap: bool) -> EngineUnderTest:
    """The whole prompt is launched, in three chunks."""
    target = engine(overlap=overlap, token_budget=2)
    target.submit(1, PROMPT, 4)
    steps(target, 3)
    return target


def prefill_launched(overlap: bool) -> EngineUnderTest:
    """The prompt is launched; under overlap it is in flight."""
    target = engine(overlap=overlap)
    target.submit(1, PROMPT, 4)
    target.step()
    return target


def decode_launched(overlap: bool) -> EngineUnderTest:
    """A decode is launched; under overlap it is in flight."""
    target = engine(overlap=overlap)
    target.submit(1, PROMPT, 4)
    steps(target, 2)
    return target


def last_decode_launched(overlap: bool) -> EngineUnderTest:
    """Under overlap the decode in flight makes the last token."""
    target = engine(overlap=overlap)
    target.submit(1, PROMPT, 4)
    steps(target, 4 if overlap else 3)
    return target


PHASES: list[Callable[[bool], EngineUnderTest]] = [
    waiting,
    behind_a_full_table,
    between_chunks,
    final_chunk_launched,
    prefill_launched,
    decode_launched,
    last_decode_launched,
]
BOTH_LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])
EVERY_PHASE = pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)


@BOTH_LOOPS
@EVERY_PHASE
def test_an_aborted_request_gets_one_reply_and_gives_everything_back(
    phase: Callable[[bool], EngineUnderTest], overlap: bool
) -> None:
    """The reply comes with the next step; no token after it. (06-decode-and-release.md#abort)"""
    target = phase(overlap)

    refused = target.abort(1)
    replies = [reply for reply in target.step() if reply.uid == 1]
    told = run_until_idle(target)

    assert refused is None
    assert replies == [ABORTED]
    assert 1 not in told
    assert is_empty(target)


@BOTH_LOOPS
@EVERY_PHASE
def test_a_second_abort_is_refused(phase: Callable[[bool], EngineUnderTest], overlap: bool) -> None:
    """The request has been ended; nothing changes. (06-decode-and-release.md#abort)"""
    target = phase(overlap)
    target.abort(1)
    before = target.view()

    refused = target.abort(1)

    assert refused == Refusal("unknown_uid", 1, "a request that has not ended")
    assert target.view() == before
    assert [reply for reply in target.step() if reply.uid == 1] == [ABORTED]


@BOTH_LOOPS
@EVERY_PHASE
def test_an_abort_changes_no_token_of_anybody_else(
    phase: Callable[[bool], EngineUnderTest], overlap: bool
) -> None:
    """The next request has the same prompt, and may use its pages. (06-decode-and-release.md#abort)"""
    target = phase(overlap)

    target.abort(1)
    target.submit(2, PROMPT, 3)
    told = run_until_idle(target)

    assert told[2] == [*outputs(target, PROMPT, 3), "length"]


def test_the_computed_pages_of_an_aborted_request_are_cached() -> None:
    """Between chunks two positions are written; they are not lost. (06-decode-and-release.md#abort)"""
    target = between_chunks(overlap=False)

    target.abort(1)

    assert events_of(target, "release") == [
        {"do": "release", "uid": 1, "row": 3, "insert_len": 2, "prefix_len": 0, "given_up": []}
    ]


def test_nothing_of_a_batch_that_is_not_processed_is_cached() -> None:
    """Under overlap they are in flight at the abort, and cached later. (06-decode-and-release.md#abort)"""
    target = between_chunks(overlap=True)

    target.abort(1)

    assert events_of(target, "release") == []
    assert target.view().cache.nodes[1:] == ()

    target.step()

    assert [event["insert_len"] for event in events_of(target, "release")] == [2]


def test_an_aborted_request_keeps_its_row_while_it_is_in_flight() -> None:
    """It is retired, and takes part in no further batch. (07-overlap.md#retired)"""
    target = decode_launched(overlap=True)

    target.abort(1)

    assert (request_of(target, 1).phase, request_of(target, 1).num_in_flight) == ("retired", 1)

    target.step()

    assert events_of(target, "launch") == []
    assert is_empty(target)


def test_aborting_the_head_of_the_line_lets_the_next_one_in() -> None:
    """The next is admitted in the step after. (05-prefill-and-chunking.md#schedule)"""
    target = behind_a_full_table(overlap=True)
    target.submit(2, (9, 10), 2)
    target.abort(1)
    target.abort(0)

    told = run_until_idle(target)

    assert told == {0: ["abort"], 1: ["abort"], 2: [*outputs(target, (9, 10), 2), "length"]}


def test_an_abort_of_a_finished_request_is_refused() -> None:
    """It has had its terminal reply and is released. (06-decode-and-release.md#abort)"""
    target = engine()
    target.submit(1, PROMPT, 1)
    run_until_idle(target)

    assert target.abort(1) == Refusal("unknown_uid", 1, "a request that has not ended")
    assert target.is_idle()


def test_an_abort_of_a_request_that_has_ended_in_flight_is_refused() -> None:
    """Its terminal reply was `stop`; there will be no other. (06-decode-and-release.md#abort)"""
    target = engine()
    target.submit(1, PROMPT, 4, stop_ids=EVERY_TOKEN)
    replies = steps(target, 2)

    refused = target.abort(1)

    assert [reply.finish_reason for reply in replies] == ["stop"]
    assert refused == Refusal("unknown_uid", 1, "a request that has not ended")
    assert run_until_idle(target) == {}


def test_a_uid_is_taken_until_its_terminal_reply_is_delivered() -> None:
    """An abort of a waiting request leaves nothing behind but its reply. (04-requests.md#refusal)"""
    target = waiting(overlap=True)
    target.abort(1)

    refusals = [target.submit(1, (6, 7), 1)]
    replies = target.step()
    refusals.append(target.submit(1, (6, 7), 1))

    assert replies == [ABORTED]
    assert refusals == [Refusal("duplicate_uid", 1, "one request per uid at a time"), None]
    assert run_until_idle(target) == {1: [*outputs(target, (6, 7), 1), "length"]}
