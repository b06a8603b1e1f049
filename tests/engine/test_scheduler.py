"""Claims about the scheduler: how requests end, chunks, duplicates, sampling, reset, and what its checks say.

Guide: tests/README.md
"""

from __future__ import annotations

import pytest

from minisgl_ref.checks import CheckLevel
from minisgl_ref.testing import EngineUnderTest
from minisgl_spec.errors import InvariantError
from minisgl_spec.messages import Reply, Sampling

from .engines import (
    EVERY_TOKEN,
    engine,
    events_of,
    is_empty,
    launches,
    outputs,
    request_of,
    run_until_idle,
    steps,
)

PROMPT = (1, 2, 3)
LATER_PROMPT = (2, 3, 4, 5, 6)
BOTH_LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])


# -- how requests end ------------------------------------------------------------------------------


@BOTH_LOOPS
def test_the_eos_token_is_the_last_output(overlap: bool) -> None:
    """It is delivered, with the reason, and nothing after it. (04-requests.md#the-end)"""
    first, second, *_ = outputs(engine(), LATER_PROMPT, 4)
    target = engine(overlap=overlap, eos_ids=(second,))
    target.submit(1, LATER_PROMPT, 4)

    assert first != second
    assert run_until_idle(target) == {1: [first, second, "stop"]}
    assert is_empty(target)


@BOTH_LOOPS
def test_a_stop_token_ends_like_eos(overlap: bool) -> None:
    """Stop tokens are the request's own. (04-requests.md#the-end)"""
    first, second, *_ = outputs(engine(), LATER_PROMPT, 4)
    target = engine(overlap=overlap)
    target.submit(1, LATER_PROMPT, 4, stop_ids=(second,))
    target.submit(2, LATER_PROMPT, 4)

    assert run_until_idle(target) == {
        1: [first, second, "stop"],
        2: [*outputs(target, LATER_PROMPT, 4), "length"],
    }


@BOTH_LOOPS
def test_ignore_eos_ignores_eos_and_not_the_stop_tokens(overlap: bool) -> None:
    """Request 1 goes on to its length, request 2 stops at its own token. (04-requests.md#the-end)"""
    first, second, third, *_ = outputs(engine(), LATER_PROMPT, 4)
    target = engine(overlap=overlap, eos_ids=(first,))
    target.submit(1, LATER_PROMPT, 3, ignore_eos=True)
    target.submit(2, LATER_PROMPT, 3, ignore_eos=True, stop_ids=(second,))
    target.submit(3, LATER_PROMPT, 3)

    assert run_until_idle(target) == {
        1: [first, second, third, "length"],
        2: [first, second, "stop"],
        3: [first, "stop"],
    }


def test_a_stop_token_as_the_last_allowed_token_is_a_stop() -> None:
    """Stop is told before length. (04-requests.md#the-end)"""
    target = engine()
    target.submit(1, PROMPT, 1, stop_ids=EVERY_TOKEN)

    assert steps(target, 2) == [Reply(1, outputs(target, PROMPT, 1)[0], "stop", 0)]


@BOTH_LOOPS
def test_max_tokens_is_clamped_to_what_a_row_holds(overlap: bool) -> None:
    """Prompt and outputs together are at most max_seq_len tokens. (04-requests.md#need)"""
    target = engine(overlap=overlap, max_seq_len=8)
    target.submit(1, LATER_PROMPT, 99)

    assert run_until_idle(target) == {1: [*outputs(target, LATER_PROMPT, 3), "length"]}


def test_every_reply_tells_how_much_was_found_in_the_cache() -> None:
    """All but the last prompt token, in whole pages. (04-requests.md#state)"""
    target = engine(page_size=2)
    target.submit(1, LATER_PROMPT, 1)
    target.submit(2, LATER_PROMPT, 1)
    first = steps(target, 3)
    target.submit(3, LATER_PROMPT, 2)

    later = steps(target, 4)

    assert [reply.cached_len for reply in first] == [0, 0]
    assert [reply.cached_len for reply in later] == [4, 4]


# -- overlap ---------------------------------------------------------------------------------------


def test_overlap_tells_a_token_one_step_late() -> None:
    """Step 1 launches, step 2 launches the next and tells the first. (07-overlap.md#loop)"""
    target = engine()
    target.submit(1, PROMPT, 2)

    told = [[reply.token for reply in target.step()] for _ in range(3)]

    first, second = outputs(target, PROMPT, 2)
    assert told == [[], [first], [second]]


def test_the_normal_loop_tells_it_at_once() -> None:
    """Every step processes the batch it launched. (07-overlap.md#loop)"""
    target = engine(overlap=False)
    target.submit(1, PROMPT, 2)

    told = [[reply.token for reply in target.step()] for _ in range(2)]

    assert told == [[token] for token in outputs(target, PROMPT, 2)]


def test_nothing_is_launched_while_promised_pages_are_retired() -> None:
    """Two pages are locked, one is in use, the one that is needed is retired. (07-overlap.md#retired)"""
    target = engine(num_pages=4)
    target.submit(1, (5, 5), 1)
    run_until_idle(target)
    target.submit(2, (5, 5), 3)
    steps(target, 2)
    assert target.view().retired_pages == (2,)

    target.step()
    waited = events_of(target, "launch")
    target.step()

    assert waited == []
    assert events_of(target, "take") == [{"do": "take", "uid": 2, "pages": [2]}]


# -- chunks ----------------------------------------------------------------------------------------


def test_a_chunk_goes_back_to_the_head_of_the_line() -> None:
    """It is continued before the next request is looked at. (05-prefill-and-chunking.md#chunks)"""
    target = engine(overlap=False, token_budget=3)
    target.submit(1, LATER_PROMPT, 2)
    target.submit(2, PROMPT, 2)

    launched = launches(target, 3)

    assert launched == [
        [[1, 0, 3, False]],
        [[1, 3, 5, True], [2, 0, 1, False]],
        [[2, 1, 3, True]],
    ]


def test_between_chunks_a_request_keeps_its_row_and_its_lock() -> None:
    """It is admitted once, and not matched again. (05-prefill-and-chunking.md#chunks)"""
    target = engine(overlap=False, token_budget=2)
    target.submit(1, LATER_PROMPT, 2)
    target.step()
    before = request_of(target, 1)

    target.step()

    after = request_of(target, 1)
    assert (after.row, after.handle) == (before.row, before.handle)
    assert after.handle is not None
    assert after.handle.is_locked
    assert (before.cached_len, after.cached_len) == (2, 4)


def test_a_chunk_that_does_not_end_its_prompt_is_not_sampled() -> None:
    """Five one-token chunks bring one reply. (05-prefill-and-chunking.md#chunks)"""
    target = engine(overlap=False, token_budget=1)
    target.submit(1, LATER_PROMPT, 1)

    assert [reply.token for reply in steps(target, 5)] == outputs(target, LATER_PROMPT, 1)


# -- duplicates ------------------------------------------------------------------------------------


def two_equal_prompts(overlap: bool) -> EngineUnderTest:
    """Both were computed in one batch, and the first was cached first."""
    target = engine(overlap=overlap)
    target.submit(1, PROMPT, 4)
    target.submit(2, PROMPT, 4)
    steps(target, 2 if overlap else 1)
    return target


def test_the_row_of_duplicates_is_rewritten_on_the_device() -> None:
    """The next batch reads the pages of the tree through it. (06-decode-and-release.md#duplicates)"""
    target = two_equal_prompts(overlap=False)
    target.executions()

    target.step()

    ((first, second),) = [execution.requests for execution in target.executions()]
    assert (first.slots, second.slots) == ((0, 1, 2, 6), (0, 1, 2, 7))


def test_duplicates_are_given_back_at_once_when_nothing_is_in_flight() -> None:
    """At the end of the free list. (06-decode-and-release.md#duplicates)"""
    target = two_equal_prompts(overlap=False)

    assert [event["duplicates"] for event in events_of(target, "insert")] == [[], [3, 4, 5]]
    assert target.view().free_pages[-3:] == (3, 4, 5)


def test_duplicates_are_retired_while_a_batch_in_flight_may_read_them() -> None:
    """Until that batch is processed. (07-overlap.md#retired)"""
    target = two_equal_prompts(overlap=True)
    retired = target.view().retired_pages

    target.step()

    assert retired == (3, 4, 5)
    assert target.view().retired_pages == ()
    assert target.view().free_pages[-3:] == (3, 4, 5)


# -- sampling --------------------------------------------------------------------------------------

SAMPLINGS = (
    Sampling(0.9, 0, 1.0, 11),
    Sampling(0.9, 0, 1.0, 12),
    Sampling(2.0, 3, 1.0, 13),
    Sampling(1.3, 0, 0.7, 14),
)


@BOTH_LOOPS
@pytest.mark.parametrize("token_budget", [1, 4, 64])
@pytest.mark.parametrize("num_rows", [1, 4])
def test_seeded_sampling_does_not_depend_on_the_batch(
    num_rows: int, token_budget: int, overlap: bool
) -> None:
    """Alone, in company, in chunks, one step late: the same tokens for the same seed. (08-numerics.md)"""
    target = engine(num_rows=num_rows, token_budget=token_budget, overlap=overlap)
    for uid, sampling in enumerate(SAMPLINGS):
        target.submit(
            uid,
            LATER_PROMPT,
            5,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=sampling.seed,
        )

    told = run_until_idle(target)

    assert told == {
        uid: [*outputs(target, LATER_PROMPT, 5, sampling), "length"] for uid, sampling in enumerate(SAMPLINGS)
    }


def test_two_seeds_are_two_requests() -> None:
    """The seeds above do differ in what they draw. (08-numerics.md)"""
    target = engine()

    assert outputs(target, LATER_PROMPT, 5, SAMPLINGS[0]) != outputs(target, LATER_PROMPT, 5, SAMPLINGS[1])


def test_a_greedy_request_beside_sampled_ones_stays_greedy() -> None:
    """Nobody looks at another row of the batch. (08-numerics.md)"""
    target = engine()
    target.submit(1, LATER_PROMPT, 5, temperature=2.0, seed=5)
    target.submit(2, LATER_PROMPT, 5)

    assert run_until_idle(target)[2] == [*outputs(target, LATER_PROMPT, 5), "length"]


# -- reset -----------------------------------------------------------------------------------------


def test_a_reset_of_an_idle_engine_forgets_every_prefix() -> None:
    """The same prompt is computed again, and gets the same tokens. (03-locks-and-eviction.md#reset)"""
    target = engine()
    target.submit(1, PROMPT, 2)
    before = run_until_idle(target)

    target.reset()
    target.submit(1, PROMPT, 2)
    replies = steps(target, 3)

    assert before == {1: [*(reply.token for reply in replies), "length"]}
    assert [reply.cached_len for reply in replies] == [0, 0]


def test_a_reset_leaves_waiting_requests_where_they_are() -> None:
    """They hold nothing that a reset could take. (03-locks-and-eviction.md#reset)"""
    target = engine()
    target.submit(1, PROMPT, 2)

    target.reset()

    assert run_until_idle(target) == {1: [*outputs(target, PROMPT, 2), "length"]}


# -- checks ----------------------------------------------------------------------------------------


def engine_with_a_page_on_loan(level: CheckLevel) -> EngineUnderTest:
    """Somebody gives back a page that a running request holds: our own bug, by hand."""
    target = engine(level, overlap=False, num_pages=6)
    target.submit(1, PROMPT, 3)
    target.step()
    target.scheduler.cache.free_pages.append(0)
    return target


def test_full_checks_stop_the_engine_with_rules_numbers_and_a_drawing() -> None:
    """Every rule that is broken, one per line; the drawing is a note. (invariants.md)"""
    target = engine_with_a_page_on_loan(CheckLevel.FULL)

    with pytest.raises(InvariantError) as stopped:
        target.submit(2, (4,), 1)

    assert str(stopped.value) == (
        "pages_partitioned: page 0 is owned by free, node 1\n"
        "page_table_reads_live_pages: request 1 in row 3 reads free pages [0]"
    )
    (drawing,) = stopped.value.__notes__
    assert drawing.splitlines() == [
        "root",
        "  [1 2 3] slots=0-2 ref_count=1",
        "evictable=0 protected=3",
        "request 1 decode row=3 cached_len=3 device_len=4 of 6 slots=0-2 shared, none private",
        "request 2 waiting, prompt of 1",
        "free pages 3-5,0; retired pages none; free rows 0-2",
    ]


def test_local_checks_stop_at_the_next_operation_that_adds_up() -> None:
    """Constant time: the sum of pages is one too many. (invariants.md)"""
    target = engine_with_a_page_on_loan(CheckLevel.LOCAL)

    with pytest.raises(InvariantError) as stopped:
        target.step()

    assert str(stopped.value) == (
        "pages_partitioned: free_pages=3, cached_pages=3, private_pages=1, waiting_pages=0, num_pages=6"
    )
    assert stopped.value.__notes__ == ["root\n  [1 2 3] slots=0-2 ref_count=1\nevictable=0 protected=3"]


def test_with_checks_off_nothing_stops_the_engine() -> None:
    """Which is why they are on by default. (invariants.md)"""
    target = engine_with_a_page_on_loan(CheckLevel.OFF)

    assert run_until_idle(target)[1][-1] == "length"
