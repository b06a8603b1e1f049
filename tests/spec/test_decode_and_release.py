"""Claims about decoding, duplicates, release and abort in the normal loop.

Guide: spec/06-decode-and-release.md
"""

from __future__ import annotations

import pytest

from minisgl_spec.errors import ContractError, Refusal
from minisgl_spec.messages import Reply

from .oracle import inner, outputs, pairs, request, scheduler, stepped, submit, submitted


def test_decode_adds_a_token_a_step_in_order_of_admission() -> None:
    """Every running request gets one token. (06-decode-and-release.md#process)"""
    engine = stepped(submitted(scheduler(), (2, (1, 2), 3), (1, (5, 6), 3)))

    replies = engine.step().replies

    assert [(reply.uid, reply.token) for reply in replies] == [(2, 4), (1, 8)]


def test_a_reply_says_how_much_was_cached_at_admission() -> None:
    """cached_len is the prefix found, whatever is cached later. (06-decode-and-release.md#process)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3, 4), 1)))
    submitted(engine, (2, (1, 2, 3, 4, 5), 2))

    replies = [*engine.step().replies, *engine.step().replies]

    assert replies == [Reply(2, 6, None, 4), Reply(2, 7, "length", 4)]


def test_a_computed_prompt_is_cached_at_once() -> None:
    """The next request may share it while this one decodes. (06-decode-and-release.md#duplicates)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3, 4, 5), 9)))
    submitted(engine, (2, (1, 2, 3, 4, 7), 1))

    engine.step()

    assert inner(engine, "admit") == [{"uid": 2, "row": 0, "cached_len": 4, "pages": [0, 1]}]


def test_outputs_are_cached_at_the_end_only() -> None:
    """Decode writes to private pages; release caches them. (06-decode-and-release.md#release)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3), 3)), 2)
    while_decoding = sorted(pairs(engine.cache.tree))

    engine.step()

    assert (while_decoding, sorted(pairs(engine.cache.tree))) == ([(1, 2)], [(1, 2), (1, 2, 3, 4)])


def test_of_two_equal_prompts_in_a_batch_the_first_is_cached() -> None:
    """The second's copies are duplicates and are given back. (06-decode-and-release.md#duplicates)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3, 4, 5), 3), (2, (1, 2, 3, 4, 5), 3)))

    assert inner(engine, "insert") == [
        {"uid": 1, "insert_len": 4, "prefix_len": 0, "duplicates": []},
        {"uid": 2, "insert_len": 4, "prefix_len": 4, "duplicates": [3, 4]},
    ]
    assert engine.cache.pool.free_pages == (6, 7, 3, 4)


def test_a_row_names_the_trees_slots_before_duplicates_are_free() -> None:
    """Nobody reads a free page. (06-decode-and-release.md#duplicates)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3, 4, 5), 3), (2, (1, 2, 3, 4, 5), 3)))

    assert (request(engine, 1).row_slots, request(engine, 2).row_slots) == (
        (0, 1, 2, 3, 4, 5),
        (0, 1, 2, 3, 10, 11),
    )


def test_release_gives_back_what_the_tree_did_not_take() -> None:
    """Duplicates first, then the tail that fills no page. (06-decode-and-release.md#release)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3), 1), (2, (1, 2, 3), 1)))

    assert inner(engine, "release") == [
        {"uid": 1, "row": 1, "insert_len": 2, "prefix_len": 0, "given_up": [1]},
        {"uid": 2, "row": 0, "insert_len": 2, "prefix_len": 2, "given_up": [2, 3]},
    ]


def test_after_the_last_request_every_page_is_free_or_cached() -> None:
    """Nothing is held at idle. (06-decode-and-release.md#release)"""
    engine = submitted(scheduler(), (1, (1, 2, 3), 3), (2, (1, 2, 5), 2))
    stepped(engine, 4)

    view = engine.view()
    assert (engine.is_idle(), view.requests, view.cache.protected_size) == (True, (), 0)
    assert len(view.free_pages) + view.cache.evictable_size // 2 == 8


def test_a_waiting_request_is_aborted_without_a_trace() -> None:
    """It holds nothing; its one reply comes with the next step. (06-decode-and-release.md#abort)"""
    engine = submitted(scheduler(), (1, (1, 2), 3))

    refusal = engine.abort(1)

    assert (refusal, engine.inner, engine.step().replies) == (None, [], (Reply(1, None, "abort", 0),))
    assert engine.is_idle()


def test_an_abort_between_two_chunks_caches_what_was_computed() -> None:
    """A later prompt starts from there. (06-decode-and-release.md#abort)"""
    engine = stepped(submitted(scheduler(token_budget=5), (1, (1, 2, 3, 4, 5, 6), 3)))

    engine.abort(1)

    assert inner(engine, "release") == [
        {"uid": 1, "row": 1, "insert_len": 4, "prefix_len": 0, "given_up": [2]}
    ]


def test_an_abort_while_decoding_releases_like_an_end() -> None:
    """One release path. (06-decode-and-release.md#abort)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3), 9)), 2)

    engine.abort(1)

    assert inner(engine, "release") == [
        {"uid": 1, "row": 1, "insert_len": 4, "prefix_len": 2, "given_up": []}
    ]
    assert outputs(engine, 1) == [(None, "abort")]


def test_an_abort_lets_the_others_go_on() -> None:
    """Their tokens do not change. (06-decode-and-release.md#abort)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3), 4), (2, (1, 2, 3), 3)))

    engine.abort(1)

    assert outputs(engine, 2) == [(5, None), (6, "length")]


@pytest.mark.parametrize("uid", [1, 7])
def test_what_has_ended_or_never_was_cannot_be_aborted(uid: int) -> None:
    """A second abort, a late one and an unknown uid are refused. (06-decode-and-release.md#abort)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2), 1)))

    assert engine.abort(uid) == Refusal("unknown_uid", uid, "a request that has not ended")


def test_a_second_abort_is_refused() -> None:
    """One terminal reply. (06-decode-and-release.md#abort)"""
    engine = submitted(scheduler(), (1, (1, 2), 1))
    engine.abort(1)

    refusal = engine.abort(1)

    assert refusal == Refusal("unknown_uid", 1, "a request that has not ended")
    assert outputs(engine, 1) == [(None, "abort")]


def test_an_engines_reset_is_refused_while_a_request_runs() -> None:
    """Its prefix is locked. (03-locks-and-eviction.md#reset)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3), 9)))
    before = engine.view()

    with pytest.raises(ContractError, match="reset: need no locked handle"):
        engine.reset()

    assert engine.view() == before


def test_an_engines_reset_keeps_who_waits() -> None:
    """Only the cache is emptied. (03-locks-and-eviction.md#reset)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2), 1)))
    submit(engine, 2, (1, 2, 3), 1)

    engine.reset()

    assert (pairs(engine.cache.tree), outputs(engine, 2)) == ({}, [(4, "length")])


def test_an_idle_step_does_nothing() -> None:
    """No batch, no reply, no event. (06-decode-and-release.md#process)"""
    engine = scheduler()

    outputs_of_step = engine.step()

    assert (outputs_of_step.replies, outputs_of_step.inner, engine) == ((), (), scheduler())
