"""The five questions of the chapters, each answered by the mutant that does otherwise.

A mutant is one changed place in a copy of the oracle's source.
Guide: spec/README.md
"""

from __future__ import annotations

import pytest

from minisgl_spec import admission, cache, radix_tree, scheduler
from minisgl_spec.cache import PrefixCache
from minisgl_spec.contracts import evict_leaves_first
from minisgl_spec.errors import ContractError
from minisgl_spec.invariants import violations
from minisgl_spec.radix_tree import Handle, RadixTree
from minisgl_spec.scheduler import Scheduler

from . import oracle


def broken(view: object) -> list[str]:
    return [violation.rule for violation in violations(view)]


def test_matching_the_whole_prompt_leaves_nothing_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all of a prompt may match, its batch has no token. (05-prefill-and-chunking.md#admission)"""
    mutant = oracle.mutated(cache, "self.tree.match_prefix(ids[:-1])", "self.tree.match_prefix(ids)")
    monkeypatch.setattr(PrefixCache, "match_all_but_last", mutant.PrefixCache.match_all_but_last)
    engine = oracle.stepped(oracle.submitted(oracle.scheduler(), (1, (1, 2, 3, 4), 1)))
    oracle.submitted(engine, (2, (1, 2, 3, 4), 1))

    engine.step()

    assert oracle.inner(engine, "launch") == [
        {"batch": 2, "phase": "prefill", "requests": [[2, 4, 4, True]]}  # cached_len == device_len
    ]


def test_without_the_second_check_a_request_is_admitted_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lock takes the match out of what is evictable; who does not count again promises it twice.

    (05-prefill-and-chunking.md#admission)
    """
    old = "cache.tree.lock(handle)\n    if need > cache.available_pages:"
    mutant = oracle.mutated(admission, old, "cache.tree.lock(handle)\n    if False:")
    monkeypatch.setattr(scheduler, "try_admit", mutant.try_admit)
    engine = oracle.scheduler(num_pages=5, max_seq_len=10)
    oracle.stepped(oracle.submitted(engine, (1, (1, 2, 3, 4), 1)))
    oracle.stepped(oracle.submitted(engine, (2, (8, 8, 8), 3)), 2)
    oracle.submitted(engine, (4, (1, 2, 3, 4, 9), 2))

    engine.step()

    assert broken(engine.view()) == ["admitted_requests_fit"]
    with pytest.raises(ContractError, match="allocate: need 0 <= count <= available pages; got count=1"):
        engine.step()


def test_without_reversing_a_row_lists_its_pages_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots gathered from node to root come last run first. (02-radix-tree.md#match)"""
    mutant = oracle.mutated(radix_tree, "in self.node.path() for slot", "in self.node.path()[::-1] for slot")
    monkeypatch.setattr(Handle, "slots", mutant.Handle.slots)
    engine = oracle.stepped(oracle.submitted(oracle.scheduler(), (1, (1, 2, 3, 4), 1)))
    oracle.stepped(oracle.submitted(engine, (2, (1, 2, 7), 1)))
    oracle.submitted(engine, (3, (1, 2, 3, 4, 5), 2))

    engine.step()

    assert broken(engine.view()) == ["page_table_follows_handle"]
    assert oracle.request(engine, 3).row_slots[:4] == (2, 3, 0, 1)


def test_duplicates_that_are_not_given_back_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the row names the tree's pages, the duplicates are lost. (06-decode-and-release.md#duplicates)"""
    mutant = oracle.mutated(scheduler, "return self._retire_or_give(request, duplicates)", "return []")
    monkeypatch.setattr(Scheduler, "_cache_unfinished", mutant.Scheduler._cache_unfinished)
    engine = oracle.submitted(oracle.scheduler(), (1, (1, 2, 3, 4, 5), 3), (2, (1, 2, 3, 4, 5), 3))

    engine.step()

    assert broken(engine.view()) == ["pages_partitioned", "pages_partitioned"]  # pages 3 and 4


def test_evicting_an_inner_node_leaves_its_children_without_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs below an evicted node can never be matched again. (03-locks-and-eviction.md#evict)"""
    mutant = oracle.mutated(radix_tree, "and not self.children(node) and", "and")
    monkeypatch.setattr(RadixTree, "evictable_leaves", mutant.RadixTree.evictable_leaves)
    tree = oracle.tree_with((1, 2), (1, 2, 3, 4))
    cached = oracle.cached(tree)

    slots = tree.evict(2)

    assert (
        len(list(evict_leaves_first(cached, slots))) == 1
    )  # (1, 2, 3, 4) stays behind a prefix that is gone
    assert broken(tree.view()) == ["parents_and_children_agree"]


def test_evicting_a_locked_leaf_takes_pages_from_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked handle must keep its node. (03-locks-and-eviction.md#evict)"""
    mutant = oracle.mutated(radix_tree, " and self.ref_count(node) == 0\n        ]", "\n        ]")
    monkeypatch.setattr(RadixTree, "evictable_leaves", mutant.RadixTree.evictable_leaves)
    tree = oracle.tree_with((1, 2))
    oracle.locked(tree, 1, 2)
    tree.insert_prefix((3, 4), (2, 3))

    tree.evict(2)

    assert broken(tree.view()) == ["ref_count_counts_handles", "locked_nodes_in_tree"]


def test_evicted_pages_that_nobody_gives_back_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree returns slots; allocation gives the pages back. (03-locks-and-eviction.md#evict)"""
    mutant = oracle.mutated(cache, "self.pool.give(evicted)", "pass")
    monkeypatch.setattr(PrefixCache, "allocate", mutant.PrefixCache.allocate)
    engine = oracle.stepped(oracle.submitted(oracle.scheduler(num_pages=2), (1, (1, 2, 3, 4), 1)))
    oracle.submitted(engine, (2, (5, 6), 1))

    with pytest.raises(ContractError, match="take: need 0 <= count <= free pages; got count=1, free=0"):
        engine.step()
