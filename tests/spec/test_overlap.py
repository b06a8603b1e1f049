"""Claims about the overlap loop: one step late, and what may be freed when.

Guide: spec/07-overlap.md
"""

from __future__ import annotations

import pytest

from minisgl_spec.errors import Refusal
from minisgl_spec.scheduler import Scheduler

from .oracle import inner, lengths, outputs, pairs, request, scheduler, stepped, submit, submitted

PROGRAM = ((1, (1, 2, 3), 4), (2, (1, 2, 3, 4, 5), 3), (3, (7,), 1))


def test_a_batch_is_processed_one_step_late() -> None:
    """The next one is launched first. (07-overlap.md#loop)"""
    engine = submitted(scheduler(overlap=True), (1, (1, 2, 3), 3))

    events = [[event["do"] for event in stepped(engine).inner] for _ in range(3)]

    assert events == [
        ["admit", "take", "launch"],
        ["launch", "process", "reply", "insert"],
        ["take", "launch", "process", "reply"],
    ]


def test_with_nothing_to_launch_the_last_batch_is_processed() -> None:
    """A step always processes what is in flight. (07-overlap.md#loop)"""
    engine = stepped(submitted(scheduler(overlap=True), (1, (1, 2, 3), 1)))

    engine.step()

    assert [event["do"] for event in engine.inner] == ["process", "reply", "release"]


def test_written_len_follows_when_the_batch_was_processed() -> None:
    """cached_len counts what is being written, written_len what has been. (07-overlap.md#loop)"""
    engine = submitted(scheduler(overlap=True), (1, (1, 2, 3), 4))

    assert [lengths(stepped(engine), 1) for _ in range(2)] == [(3, 4, 0), (4, 5, 3)]


@pytest.mark.parametrize("uid", [1, 2, 3])
@pytest.mark.parametrize("eos_ids", [(), (5,), (6,)])
def test_overlap_changes_no_token(uid: int, eos_ids: tuple[int, ...]) -> None:
    """Every request gets the same replies in both loops. (07-overlap.md#finishing)"""
    overlap = submitted(scheduler(overlap=True, eos_ids=eos_ids), *PROGRAM)
    normal = submitted(scheduler(eos_ids=eos_ids), *PROGRAM)

    assert outputs(overlap, uid) == outputs(normal, uid)


def test_a_request_that_ends_at_its_last_token_is_not_launched_again() -> None:
    """The end by length is known in advance. (07-overlap.md#finishing)"""
    engine = submitted(scheduler(overlap=True), (1, (1, 2, 3), 2))

    launched = [inner(stepped(engine), "launch") for _ in range(3)]

    assert [len(batches) for batches in launched] == [1, 1, 0]


def ended_in_flight() -> Scheduler:
    """Request 1 got its stop token while its next batch was launched already."""
    return stepped(submitted(scheduler(overlap=True, eos_ids=(5,)), (1, (1, 2, 3), 9)), 3)


def test_an_ended_request_keeps_row_and_pages_while_it_is_in_flight() -> None:
    """They are retired: nobody else gets them yet. (07-overlap.md#retired)"""
    view = ended_in_flight().view()

    assert (view.requests[0].phase, view.free_rows, view.free_pages) == ("retired", (0,), (3, 4, 5, 6, 7))


def test_a_retired_request_gets_no_second_reply() -> None:
    """The token of the batch in flight is dropped. (07-overlap.md#retired)"""
    engine = ended_in_flight()

    assert engine.step().replies == ()
    assert engine.is_idle()


def test_a_retired_request_is_released_once_with_its_last_batch() -> None:
    """Then its pages are cached or free. (07-overlap.md#retired)"""
    engine = stepped(ended_in_flight())

    assert inner(engine, "release") == [
        {"uid": 1, "row": 1, "insert_len": 4, "prefix_len": 2, "given_up": [2]}
    ]


def test_a_retired_request_keeps_its_uid() -> None:
    """Until it is released, no other request may have it, and nobody can abort it. (07-overlap.md#retired)"""
    engine = ended_in_flight()

    assert submit(engine, 1, (1,), 1) == Refusal("duplicate_uid", 1, "one request per uid at a time")
    assert engine.abort(1) == Refusal("unknown_uid", 1, "a request that has not ended")


def test_an_abort_of_a_request_in_flight_only_marks_it() -> None:
    """Nothing of a batch that was not processed is cached. (07-overlap.md#retired)"""
    engine = stepped(submitted(scheduler(overlap=True), (1, (1, 2, 3, 4), 9)))

    engine.abort(1)

    assert (engine.inner, pairs(engine.cache.tree), request(engine, 1).phase) == ([], {}, "retired")


def test_an_aborted_request_gets_one_reply_and_no_token() -> None:
    """Neither the token in flight nor another. (07-overlap.md#retired)"""
    engine = stepped(submitted(scheduler(overlap=True), (1, (1, 2, 3, 4), 9)), 2)

    engine.abort(1)

    assert outputs(engine, 1) == [(None, "abort")]


def test_an_abort_between_two_chunks_in_flight_waits_for_the_chunk() -> None:
    """What the chunk wrote is cached then. (07-overlap.md#retired)"""
    engine = stepped(submitted(scheduler(overlap=True, token_budget=2), (1, (1, 2, 3, 4), 9)))
    engine.abort(1)

    engine.step()

    assert inner(engine, "release") == [
        {"uid": 1, "row": 1, "insert_len": 2, "prefix_len": 0, "given_up": []}
    ]


def test_duplicates_that_a_batch_in_flight_reads_are_retired() -> None:
    """They are free when that batch has been processed. (07-overlap.md#retired)"""
    engine = submitted(scheduler(overlap=True), (1, (1, 2, 3, 4, 5), 3), (2, (1, 2, 3, 4, 5), 3))

    pages = [(stepped(engine).view().retired_pages, engine.view().free_pages) for _ in range(3)]

    assert pages == [((), (6, 7)), ((3, 4), (6, 7)), ((), (3, 4))]


def test_retired_pages_are_not_promised_to_anybody() -> None:
    """Admission waits for them. (07-overlap.md#retired)"""
    engine = submitted(scheduler(overlap=True, num_pages=4, eos_ids=(5,)), (1, (1, 2, 3), 6))
    stepped(engine, 3)
    submitted(engine, (2, (7, 7, 7, 7, 7), 2))

    engine.step()
    refused = inner(engine, "refuse")
    engine.step()

    assert refused == [{"uid": 2, "why": "no_room", "need": 3, "available": 1}]
    assert inner(engine, "admit") == [{"uid": 2, "row": 1, "cached_len": 0, "pages": []}]


def test_a_row_is_not_reused_while_its_last_batch_is_in_flight() -> None:
    """A late write cannot reach somebody else's row. (07-overlap.md#retired)"""
    engine = stepped(submitted(scheduler(overlap=True, num_rows=1, eos_ids=(5,)), (1, (1, 2, 3), 9)), 3)
    submitted(engine, (2, (7, 7), 1))

    engine.step()

    assert inner(engine, "refuse") == [{"uid": 2, "why": "no_row", "need": 1, "available": 0}]
