"""Claims about contracts: what each permits, and what it complains of.

A contract permits every right answer: any slots, any victim that no lock protects.
Guide: spec/invariants.md
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minisgl_spec import contracts
from minisgl_spec.contracts import CachedPrefixes
from minisgl_spec.messages import Reply

from .oracle import scheduler, stepped, submitted, tree_with


def cached() -> CachedPrefixes:
    """[1 2] in slots 0-1 and below it [3 4] in 8-9 and [5 6] in 4-5; [1 2 3 4] is locked."""
    model = CachedPrefixes(2)
    model.insert((1, 2, 3, 4), (0, 1, 8, 9))
    model.insert((1, 2, 5, 6, 7), (6, 7, 4, 5, 2))
    model.locked[(1, 2, 3, 4)] += 1
    return model


def test_the_first_insertion_is_the_one_recorded() -> None:
    """Whole pages only, and what is there stays. (spec/invariants.md)"""
    assert cached().slots == {(1, 2): (0, 1), (1, 2, 3, 4): (8, 9), (1, 2, 5, 6): (4, 5)}


def test_the_model_knows_sizes_and_prefixes() -> None:
    """A lock protects its whole path. (spec/invariants.md)"""
    model = cached()

    assert (model.sizes(), model.longest((1, 2, 5, 6, 9)), model.slots_of((1, 2, 5, 6))) == (
        (2, 4),
        4,
        (0, 1, 4, 5),
    )


def test_the_model_forgets_what_was_evicted() -> None:
    """The page is gone, the prefix above it stays. (spec/invariants.md)"""
    model = cached()

    model.remove((4, 5))

    assert (model.longest((1, 2, 5, 6)), model.sizes()) == (2, (0, 4))


def reply(uid: int = 1) -> Reply:
    return Reply(uid, 4, None, 0)


def admit(uid: int) -> dict[str, object]:
    return {"do": "admit", "uid": uid, "row": 0}


def release(uid: int) -> dict[str, object]:
    return {"do": "release", "uid": uid, "row": 0}


PERMITTED = {
    "the longest match": lambda: contracts.match_is_longest(cached(), (1, 2, 3, 9), 2),
    "its slots": lambda: contracts.match_returns_cached_slots(cached(), (1, 2, 5, 6), 4, (0, 1, 4, 5)),
    "an insertion": lambda: contracts.insert_reports_prefix(cached(), (1, 2, 9, 9, 9), 2, 4),
    "sizes": lambda: contracts.sizes_add_up(cached(), 2, 4),
    "more than was asked": lambda: contracts.evict_frees_enough(cached(), 1, (4, 5)),
    "a leaf": lambda: contracts.evict_leaves_first(cached(), (4, 5)),
    "nothing evicted": lambda: contracts.evict_takes_oldest_leaf(tree_with((1, 2)).view(), ()),
    "no change": lambda: contracts.refusal_changes_nothing("state", "state"),
    "one release": lambda: contracts.released_once([admit(1), release(1), admit(1), release(1)]),
    "a reply before the end": lambda: contracts.replied_once({2}, reply()),
    "a tied token": lambda: contracts.tokens_are_the_models(1, (3,), (4, 5), 5),
    "an abort at any time": lambda: contracts.ends_with_its_last_token(1, (3,), "abort", None),
    "right codes": lambda: contracts.digest_is_the_models(1, range(1), (7,), [7]),
    "equal with the cache": lambda: contracts.caching_changes_no_token(1, (4, 5), [4, 5]),
    "equal bits": lambda: contracts.caching_changes_no_bit(1, 3, b"abcd", b"abcd", "a warm cache"),
    "equal in chunks": lambda: contracts.chunking_changes_no_token(1, (4, 5), [4, 5]),
    "equal in overlap": lambda: contracts.overlap_changes_no_token(1, (4, 5), [4, 5]),
    "all ended": lambda: contracts.requests_finish((), 100),
    "an idle engine": lambda: contracts.nothing_left_at_idle(scheduler().view()),
    "the oracle's decision": lambda: contracts.agrees_with_oracle("victims", (1,), (1,)),
}

EXCLUDED = {
    "a shorter match": lambda: contracts.match_is_longest(cached(), (1, 2, 3, 4), 2),
    "a longer match": lambda: contracts.match_is_longest(cached(), (1, 2, 9, 9), 4),
    "slots in another order": lambda: contracts.match_returns_cached_slots(
        cached(), (1, 2, 5, 6), 4, (4, 5, 0, 1)
    ),
    "slots that are missing": lambda: contracts.match_returns_cached_slots(cached(), (1, 2), 2, ()),
    "a lost node": lambda: contracts.match_preserves_contents(
        tree_with((1, 2)).view(), tree_with((1, 3)).view()
    ),
    "an insertion that says too little": lambda: contracts.insert_reports_prefix(
        cached(), (1, 2, 9, 9), 0, 4
    ),
    "a handle that is too short": lambda: contracts.insert_reports_prefix(cached(), (1, 2, 9, 9), 2, 2),
    "sizes that forget a lock": lambda: contracts.sizes_add_up(cached(), 6, 0),
    "less than was asked": lambda: contracts.evict_frees_enough(cached(), 4, (4, 5)),
    "a locked victim": lambda: contracts.evict_frees_enough(cached(), 2, (8, 9)),
    "a slot evicted twice": lambda: contracts.evict_frees_enough(cached(), 2, (4, 5, 4, 5)),
    "a slot that was not cached": lambda: contracts.evict_frees_enough(cached(), 1, (14,)),
    "a parent before its child": lambda: contracts.evict_leaves_first(cached(), (0, 1)),
    "a victim that was used later": lambda: contracts.evict_takes_oldest_leaf(
        tree_with((1, 2), (3, 4)).view(), (2, 3)
    ),
    "more than there is": lambda: contracts.evict_takes_oldest_leaf(tree_with((1, 2)).view(), (0, 1, 2)),
    "a change by a refused call": lambda: contracts.refusal_changes_nothing("before", "after"),
    "a second release": lambda: contracts.released_once([admit(1), release(1), release(1)]),
    "a second admission": lambda: contracts.released_once([admit(1), admit(1)]),
    "a reply after the end": lambda: contracts.replied_once({1}, reply()),
    "a token of another sequence": lambda: contracts.tokens_are_the_models(1, (3,), (4,), 9),
    "an end one token early": lambda: contracts.ends_with_its_last_token(1, (3,), "length", None),
    "no end": lambda: contracts.ends_with_its_last_token(1, (3, 4), None, "length"),
    "wrong codes": lambda: contracts.digest_is_the_models(1, range(1), (7,), [8]),
    "a read of something else": lambda: contracts.reads_hold_their_prefix(1, 0, 4, "was never written"),
    "another token with the cache": lambda: contracts.caching_changes_no_token(1, (4,), (5,)),
    "another bit": lambda: contracts.caching_changes_no_bit(1, 3, b"abcd", b"abce", "a warm cache"),
    "another token in chunks": lambda: contracts.chunking_changes_no_token(1, (4,), (5,)),
    "another token in overlap": lambda: contracts.overlap_changes_no_token(1, (4,), (5,)),
    "a request that never ends": lambda: contracts.requests_finish((1,), 100),
    "a crash": lambda: contracts.steps_complete("step", "IndexError"),
    "a lock at idle": lambda: contracts.nothing_left_at_idle(
        stepped(submitted(scheduler(), (1, (1, 2, 3), 9))).view()
    ),
    "another decision": lambda: contracts.agrees_with_oracle("victims", (1,), (2,)),
}


@pytest.mark.parametrize("case", PERMITTED)
def test_a_right_answer_is_permitted(case: str) -> None:
    """No false alarm. (spec/invariants.md)"""
    assert list(PERMITTED[case]()) == []


@pytest.mark.parametrize("case", EXCLUDED)
def test_a_wrong_answer_is_excluded(case: str) -> None:
    """And told in words. (spec/invariants.md)"""
    found: Iterator[str] = EXCLUDED[case]()

    assert list(found) != []


def test_a_page_that_nobody_owns_is_found_at_idle() -> None:
    """Free and cached pages make up the pool. (spec/invariants.md)"""
    view = scheduler().view()
    leaked = view._replace(free_pages=view.free_pages[1:])

    assert list(contracts.nothing_left_at_idle(leaked)) == [
        "idle with 7 free and 0 cached of 8 pages, 2 free of 2 rows"
    ]
