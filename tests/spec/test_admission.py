"""Claims about admission, chunks and allocation.

Guide: spec/05-prefill-and-chunking.md
"""

from __future__ import annotations

from minisgl_spec.invariants import check

from .oracle import inner, outputs, request, scheduler, stepped, submitted


def test_requests_are_admitted_in_order_of_arrival() -> None:
    """First come, first served, while there is budget. (05-prefill-and-chunking.md#schedule)"""
    engine = stepped(submitted(scheduler(num_rows=3), (2, (1, 2), 1), (1, (3, 4), 1)))

    assert inner(engine, "launch") == [
        {"batch": 1, "phase": "prefill", "requests": [[2, 0, 2, True], [1, 0, 2, True]]}
    ]


def test_nobody_overtakes_the_head_of_the_line() -> None:
    """A small request behind one that has to wait waits too. (05-prefill-and-chunking.md#schedule)"""
    engine = stepped(submitted(scheduler(num_pages=5), (1, (1, 2, 3, 4), 4)))
    submitted(engine, (2, (5, 6, 7, 8), 4), (3, (9,), 1))

    engine.step()

    assert inner(engine, "refuse") == [{"uid": 2, "why": "no_room", "need": 6, "available": 3}]
    assert inner(engine, "admit") == []


def test_without_a_row_nothing_is_matched() -> None:
    """The line stops where rows run out. (05-prefill-and-chunking.md#admission)"""
    engine = stepped(submitted(scheduler(num_rows=1), (1, (1, 2), 2), (2, (3, 4), 1)))

    assert inner(engine, "refuse") == [{"uid": 2, "why": "no_row", "need": 1, "available": 0}]


def test_an_admitted_request_starts_from_what_is_cached() -> None:
    """Its row begins with the slots of the matched prefix. (05-prefill-and-chunking.md#admission)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2, 3, 4), 1)))
    submitted(engine, (2, (1, 2, 3, 4), 2))

    engine.step()

    assert inner(engine, "admit") == [{"uid": 2, "row": 1, "cached_len": 2, "pages": [0]}]
    assert inner(engine, "launch")[0]["requests"] == [[2, 2, 4, True]]


def test_space_is_counted_before_the_lock() -> None:
    """What cannot fit anyway is not locked. (05-prefill-and-chunking.md#admission)"""
    engine = stepped(submitted(scheduler(num_pages=4), (1, (8, 8, 8), 3)))
    submitted(engine, (2, (5, 5, 5, 5), 2))

    engine.step()

    assert inner(engine, "refuse") == [{"uid": 2, "why": "no_room", "need": 4, "available": 2}]


def test_space_is_counted_again_after_the_lock() -> None:
    """The lock takes the matched pages out of what can be evicted. (05-prefill-and-chunking.md#admission)"""
    engine = stepped(submitted(scheduler(num_pages=5), (1, (1, 2, 3, 4), 1)))
    stepped(submitted(engine, (2, (8, 8, 8), 3)))
    submitted(engine, (3, (1, 2, 3, 4, 9), 2))

    engine.step()

    assert inner(engine, "refuse") == [{"uid": 3, "why": "no_room_after_lock", "need": 2, "available": 1}]
    assert (request(engine, 3).phase, engine.cache.tree.evictable_size) == ("waiting", 4)


def test_what_is_promised_counts_as_gone() -> None:
    """Pages that a request may still take are no one else's. (05-prefill-and-chunking.md#admission)"""
    engine = submitted(scheduler(num_pages=4), (1, (1, 2), 5), (2, (3, 4), 3))

    engine.step()

    assert inner(engine, "refuse") == [{"uid": 2, "why": "no_room", "need": 5, "available": 4}]
    check(engine.view())


def test_a_page_is_taken_when_its_first_slot_is_written() -> None:
    """Promised at admission, taken step by step. (05-prefill-and-chunking.md#allocate)"""
    engine = submitted(scheduler(), (1, (1, 2, 3), 4))

    taken = [inner(stepped(engine), "take") for _ in range(4)]

    assert taken == [[{"uid": 1, "pages": [0, 1]}], [], [{"uid": 1, "pages": [2]}], []]


def test_a_prompt_is_cut_to_the_budget() -> None:
    """The rest waits at the head of the line. (05-prefill-and-chunking.md#chunks)"""
    engine = submitted(scheduler(token_budget=3), (1, (1, 2, 3, 4, 5), 1), (2, (7, 8), 1))

    launched = [inner(stepped(engine), "launch")[0]["requests"] for _ in range(3)]

    assert launched == [
        [[1, 0, 3, False]],
        [[1, 3, 5, True], [2, 0, 1, False]],
        [[2, 1, 2, True]],
    ]


def test_a_chunk_keeps_its_row_and_its_handle() -> None:
    """An unfinished prompt is not admitted twice, nor cached half way. (05-prefill-and-chunking.md#chunks)"""
    engine = stepped(submitted(scheduler(token_budget=2), (1, (1, 2, 3, 4, 5), 1)))
    before = request(engine, 1)

    engine.step()

    after = request(engine, 1)
    assert (after.row, after.handle, inner(engine, "admit")) == (before.row, before.handle, [])
    assert (before.cached_len, after.cached_len, after.phase) == (2, 4, "prefill")


def test_a_chunk_may_end_inside_a_page() -> None:
    """The next chunk goes on in the same page. (05-prefill-and-chunking.md#chunks)"""
    engine = submitted(scheduler(token_budget=3), (1, (1, 2, 3, 4, 5), 1))

    taken = [inner(stepped(engine), "take") for _ in range(2)]

    assert taken == [[{"uid": 1, "pages": [0, 1]}], [{"uid": 1, "pages": [2]}]]


def test_prefill_goes_before_decode() -> None:
    """While a prompt can be computed, nobody decodes. (05-prefill-and-chunking.md#schedule)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2), 3)))
    submitted(engine, (2, (7, 8), 3))

    phases = [inner(stepped(engine), "launch")[0]["phase"] for _ in range(2)]

    assert phases == ["prefill", "decode"]


def test_one_eviction_serves_the_whole_batch() -> None:
    """What all requests are short of is evicted at once. (05-prefill-and-chunking.md#allocate)"""
    engine = stepped(submitted(scheduler(num_pages=4), (1, (1, 2, 3, 4, 5, 6), 1)))
    submitted(engine, (2, (7, 7), 1), (3, (8, 8), 1))

    engine.step()

    assert (inner(engine, "evict"), inner(engine, "take")) == (
        [{"pages": [0, 1, 2]}],
        [{"uid": 2, "pages": [3]}, {"uid": 3, "pages": [0]}],
    )


def test_a_request_that_had_to_wait_is_served_when_there_is_room() -> None:
    """Whatever was accepted finishes. (05-prefill-and-chunking.md#admission)"""
    engine = submitted(scheduler(num_pages=4), (1, (1, 2), 5), (2, (3, 4), 3))

    assert outputs(engine, 2) == [(5, None), (6, None), (7, "length")]


def test_the_naive_cache_computes_every_prompt_whole() -> None:
    """Nothing is shared, and everybody finishes. (05-prefill-and-chunking.md#admission)"""
    engine = stepped(submitted(scheduler(cache="naive"), (1, (1, 2, 3, 4), 1)))
    submitted(engine, (2, (1, 2, 3, 4), 1))

    engine.step()

    assert inner(engine, "admit") == [{"uid": 2, "row": 1, "cached_len": 0, "pages": []}]
