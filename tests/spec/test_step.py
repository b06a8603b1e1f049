"""Claims about states: plain values that can be copied, compared and hashed.

Guide: spec/README.md
"""

from __future__ import annotations

from minisgl_spec.errors import Refusal
from minisgl_spec.invariants import check
from minisgl_spec.messages import Reply
from minisgl_spec.requests import Submission
from minisgl_spec.scheduler import Abort, step

from .oracle import scheduler, stepped, submitted

EVENTS = (Submission(1, (1, 2, 3), 2), Submission(2, (), 1), Abort(7))


def test_a_step_takes_in_events_and_says_what_came_out() -> None:
    """Refusals by uid, replies, and inner events in order. (spec/README.md)"""
    outputs = scheduler().step(EVENTS)

    assert outputs.refusals == (
        (2, Refusal("empty_prompt", 0, 1)),
        (7, Refusal("unknown_uid", 7, "a request that has not ended")),
    )
    assert outputs.replies == (Reply(1, 4, None, 0),)
    assert [event["do"] for event in outputs.inner] == [
        "admit",
        "take",
        "launch",
        "process",
        "reply",
        "insert",
    ]


def test_a_step_on_a_copy_leaves_the_state_as_it_was() -> None:
    """step(state, events) changes nothing it was given. (decisions/010-the-oracle-is-a-step-function.md)"""
    state = stepped(submitted(scheduler(overlap=True), (1, (1, 2, 3), 4)))
    before = state.view()

    after, _ = step(state, EVENTS)

    assert (state.view(), after == state) == (before, False)
    check(after.view())


def test_a_step_on_a_copy_is_the_same_step() -> None:
    """One rule, two ways to call it. (decisions/010-the-oracle-is-a-step-function.md)"""
    state = stepped(submitted(scheduler(overlap=True), (1, (1, 2, 3), 4)))

    after, outputs = step(state, EVENTS)

    assert outputs == state.step(EVENTS)
    assert after == state


def test_two_ways_to_one_state_are_equal_and_hash_alike() -> None:
    """States can be keys of a search. (decisions/010-the-oracle-is-a-step-function.md)"""
    first, second = submitted(scheduler(), (1, (1, 2), 1)), submitted(scheduler(), (1, (1, 2), 1))

    assert len({first, second, scheduler()}) == 2


def test_a_reply_that_is_due_makes_a_difference() -> None:
    """What the next step will say is part of the state. (decisions/010-the-oracle-is-a-step-function.md)"""
    aborted = submitted(scheduler(), (1, (1, 2), 1))
    aborted.abort(1)

    assert (aborted == scheduler(), aborted.view() == scheduler().view()) == (False, True)


def test_other_sampling_is_another_state() -> None:
    """Everything a request asked for counts. (decisions/010-the-oracle-is-a-step-function.md)"""
    assert submitted(scheduler(), (1, (1, 2), 1)) != submitted(scheduler(), (1, (1, 2), 2))


def test_a_state_is_no_other_thing() -> None:
    """It equals nothing else. (decisions/010-the-oracle-is-a-step-function.md)"""
    assert scheduler() != "a state"
