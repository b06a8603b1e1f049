"""A row was given to the next request while a batch in flight could still write to it (deviation 5).

Upstream gave row and pages back when the end of a request was known, though the next batch, launched
already, held it. The row's next owner copied its prompt there on the scheduler's stream; then that
batch wrote its token into the middle of it. Broken: in_flight_requests_are_held.
"""

from __future__ import annotations

from minisgl_ref.testing import EngineUnderTest

from .engines import (
    EVERY_TOKEN,
    TABLE_WRITES_ONLY,
    broken_rules,
    events_of,
    expected_outputs,
    ours,
    run_until_idle,
    steps,
    undone,
)

LONG_PROMPT = tuple(range(4, 16))


def one_row_for_two(target: EngineUnderTest) -> EngineUnderTest:
    """The first request ends with its first token; the second waits for its row."""
    target.submit(1, (1, 2, 3), 4, stop_ids=EVERY_TOKEN)
    target.submit(2, LONG_PROMPT, 3)
    target.submit(3, LONG_PROMPT, 3)
    return target


def test_a_row_is_kept_until_the_last_batch_that_holds_it_is_processed() -> None:
    """The request has had its reply and waits for batch 2. (07-overlap.md#retired)"""
    target = one_row_for_two(ours(num_rows=1))

    replies = steps(target, 2)

    assert [reply.finish_reason for reply in replies] == ["stop"]
    assert target.view().requests[0].phase == "retired"
    assert target.view().free_rows == ()


def test_the_row_is_given_back_with_that_batch_and_not_before() -> None:
    """Step 3 processes batch 2 and can admit nobody; step 4 does. (07-overlap.md#retired)"""
    target = one_row_for_two(ours(num_rows=1))
    steps(target, 2)

    target.step()

    assert [event["do"] for event in target.last_event()] == ["refuse", "process", "release"]

    target.step()

    assert [event["uid"] for event in events_of(target, "admit")] == [2]


def test_the_next_owner_of_the_row_is_right_however_late_the_batch_is() -> None:
    """Table writes run at once, batches late: the order in which the row was lost. (07-overlap.md#streams)"""
    target = one_row_for_two(ours(num_rows=1))

    told = run_until_idle(target, TABLE_WRITES_ONLY)

    assert told[2] == told[3] == [*expected_outputs(target, LONG_PROMPT, 3), "length"]


def test_undone_a_batch_in_flight_holds_what_was_given_back() -> None:
    """The judges see it in the step that ends the request. (deviations.md)"""
    target = one_row_for_two(undone(5, num_rows=1))

    steps(target, 2)

    assert broken_rules(target) == ["in_flight_requests_are_held", "writes_are_private"]


def test_undone_the_next_owner_gets_a_wrong_token_and_so_does_who_hits_its_prefix() -> None:
    """One prompt token was replaced, and the wrong KV was cached under the right tokens. (deviations.md)"""
    target = one_row_for_two(undone(5, num_rows=1))

    told = run_until_idle(target, TABLE_WRITES_ONLY)

    assert told[2] == told[3]
    assert told[2] != [*expected_outputs(target, LONG_PROMPT, 3), "length"]


def test_undone_it_goes_unnoticed_when_work_completes_at_once() -> None:
    """Which is why the program decides how late work runs. (07-overlap.md#streams)"""
    target = one_row_for_two(undone(5, num_rows=1, streams="inline"))

    told = run_until_idle(target)

    assert told[2] == told[3] == [*expected_outputs(target, LONG_PROMPT, 3), "length"]
