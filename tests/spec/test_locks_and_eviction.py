"""Claims about locks, eviction and the cache that joins the tree to its pages.

Guide: spec/03-locks-and-eviction.md
"""

from __future__ import annotations

import pytest

from minisgl_spec.cache import PrefixCache
from minisgl_spec.errors import ContractError
from minisgl_spec.radix_tree import RadixTree

from .oracle import locked, pairs, ref_counts, tree_with


def test_a_lock_protects_the_path_to_the_root() -> None:
    """A node's ref_count counts the locked handles at or below it. (03-locks-and-eviction.md#lock)"""
    tree = tree_with((1, 2), (1, 2, 3, 4), (1, 2, 5, 6))

    locked(tree, 1, 2, 3, 4)

    assert ref_counts(tree) == {(1, 2): 1, (3, 4): 1, (5, 6): 0}
    assert (tree.evictable_size, tree.protected_size) == (2, 4)


def test_two_handles_on_one_node_are_two_locks() -> None:
    """Unlocking one of two keeps the node protected. (03-locks-and-eviction.md#unlock)"""
    tree = tree_with((1, 2))
    first, _ = locked(tree, 1, 2), locked(tree, 1, 2)

    tree.unlock(first)

    assert (ref_counts(tree), tree.protected_size) == ({(1, 2): 1}, 2)


def test_the_root_counts_handles_and_holds_no_slots() -> None:
    """A lock on a miss protects nothing, and is still a lock. (03-locks-and-eviction.md#lock)"""
    tree = tree_with((1, 2))

    locked(tree, 9, 9)

    assert (tree.ref_count(tree.root), tree.evictable_size, tree.protected_size) == (1, 2, 0)


def test_a_handle_is_locked_at_most_once() -> None:
    """A second lock is refused. (03-locks-and-eviction.md#lock)"""
    tree = tree_with((1, 2))
    handle = locked(tree, 1, 2)
    before = tree.view()

    with pytest.raises(ContractError, match="lock: need a handle that is not locked"):
        tree.lock(handle)

    assert tree.view() == before


def test_a_handle_whose_node_was_evicted_cannot_be_locked() -> None:
    """Nothing may be evicted between match and lock. (03-locks-and-eviction.md#lock)"""
    tree = tree_with((1, 2))
    handle = tree.match_prefix((1, 2))
    tree.evict(2)

    with pytest.raises(ContractError, match="It was evicted: match again"):
        tree.lock(handle)

    assert not handle.is_locked


def test_what_is_not_locked_cannot_be_unlocked() -> None:
    """A double unlock is refused where it happens. (03-locks-and-eviction.md#unlock)"""
    tree = tree_with((1, 2))
    handle = locked(tree, 1, 2)
    tree.unlock(handle)

    with pytest.raises(ContractError, match="unlock: need a locked handle"):
        tree.unlock(handle)


def test_the_least_recently_used_leaf_goes_first() -> None:
    """A match counts as a use. (03-locks-and-eviction.md#evict)"""
    tree = tree_with((1, 2), (3, 4), (5, 6))
    tree.match_prefix((1, 2))

    slots = tree.evict(2)

    assert (slots, sorted(pairs(tree))) == ((2, 3), [(1, 2), (5, 6)])


def test_leaves_go_before_their_parent() -> None:
    """A parent that lost its last child is a leaf from then on. (03-locks-and-eviction.md#evict)"""
    tree = tree_with((1, 2), (1, 2, 3, 4))

    slots = tree.evict(4)

    assert (slots, pairs(tree)) == ((4, 5, 0, 1), {})


def test_whole_leaves_go() -> None:
    """evict may return more than was asked for. (03-locks-and-eviction.md#evict)"""
    assert tree_with((1, 2, 3, 4)).evict(1) == (0, 1, 2, 3)


def test_evicting_nothing_evicts_nothing() -> None:
    """No slots are wanted, none are returned. (03-locks-and-eviction.md#evict)"""
    tree = tree_with((1, 2))

    assert (tree.evict(0), pairs(tree)) == ((), {(1, 2): (0, 1)})


def test_a_leaf_below_a_lock_may_go() -> None:
    """A lock protects what is above it, not what is below. (03-locks-and-eviction.md#evict)"""
    tree = tree_with((1, 2), (1, 2, 3, 4))
    locked(tree, 1, 2)

    slots = tree.evict(2)

    assert (slots, pairs(tree)) == ((4, 5), {(1, 2): (0, 1)})


@pytest.mark.parametrize("size", [3, -1])
def test_evicting_more_than_is_evictable_is_refused(size: int) -> None:
    """All of it or nothing, and never a locked page. (03-locks-and-eviction.md#evict)"""
    tree = tree_with((1, 2), (3, 4))
    locked(tree, 1, 2)
    before = tree.view()

    with pytest.raises(ContractError) as refused:
        tree.evict(size)

    assert refused.value.got == {"size": size, "evictable_size": 2, "protected_size": 2}
    assert tree.view() == before


def test_reset_forgets_everything() -> None:
    """Only the root is left. (03-locks-and-eviction.md#reset)"""
    tree = tree_with((1, 2), (3, 4))

    tree.reset()

    assert (pairs(tree), tree.evictable_size) == ({}, 0)


def test_reset_is_refused_while_a_handle_is_locked() -> None:
    """A request's prefix cannot be forgotten under it. (03-locks-and-eviction.md#reset)"""
    tree = tree_with((1, 2))
    locked(tree, 1, 2)

    with pytest.raises(
        ContractError, match="reset: need no locked handle; got locked_handles=1, protected_size=2"
    ):
        tree.reset()


def cache_with(*prefixes: tuple[int, ...], kind: str = "radix", num_pages: int = 4) -> PrefixCache:
    cache = PrefixCache(kind, 2, num_pages)
    for ids in prefixes:
        pages, _ = cache.allocate(len(ids) // 2)
        cache.tree.insert_prefix(ids, [slot for page in pages for slot in (2 * page, 2 * page + 1)])
    return cache


def test_allocation_takes_free_pages_before_it_evicts() -> None:
    """Nothing is evicted while pages are free. (03-locks-and-eviction.md#who-frees-the-page)"""
    cache = cache_with((1, 2), (3, 4))

    assert cache.allocate(2) == ((2, 3), ())


def test_allocation_evicts_what_the_free_list_is_short_of() -> None:
    """Evicted pages join the free list, and are taken. (03-locks-and-eviction.md#who-frees-the-page)"""
    cache = cache_with((1, 2), (3, 4))

    taken, evicted = cache.allocate(3)

    assert (taken, evicted, sorted(pairs(cache.tree))) == ((2, 3, 0), (0,), [(3, 4)])


def test_what_was_evicted_beyond_the_need_stays_free() -> None:
    """Whole leaves go; the rest is free. (03-locks-and-eviction.md#who-frees-the-page)"""
    cache = cache_with((1, 2, 3, 4, 5, 6), num_pages=3)

    assert (cache.allocate(1), cache.pool.free_pages) == (((0,), (0, 1, 2)), (1, 2))


def test_allocation_beyond_what_is_available_is_refused() -> None:
    """Admission should have counted. (03-locks-and-eviction.md#who-frees-the-page)"""
    cache = cache_with((1, 2), num_pages=2)
    locked(cache.tree, 1, 2)

    with pytest.raises(ContractError, match="got count=2, free=1, available=1"):
        cache.allocate(2)


def test_a_reset_cache_has_its_pages_in_order() -> None:
    """Every page is free again, in order of its number. (03-locks-and-eviction.md#reset)"""
    cache = cache_with((1, 2), (3, 4))

    cache.reset()

    assert (cache.pool.free_pages, pairs(cache.tree)) == ((0, 1, 2, 3), {})


def test_the_naive_cache_shares_nothing() -> None:
    """Every insertion is declined, so every match is empty. (03-locks-and-eviction.md#the-naive-cache)"""
    cache = PrefixCache("naive", 2, 4)

    result = cache.tree.insert_prefix((1, 2), (0, 1))

    assert (result.prefix_len, result.handle.prefix_len) == (0, 0)
    assert cache.tree.match_prefix((1, 2)).prefix_len == 0


def test_the_naive_cache_needs_a_slot_for_each_token_too() -> None:
    """The contract is the same. (03-locks-and-eviction.md#the-naive-cache)"""
    with pytest.raises(ContractError, match="need one slot per token; got tokens=1, slots=2"):
        PrefixCache("naive", 2, 4).tree.insert_prefix((1,), (0, 1))


def test_an_unknown_cache_is_refused() -> None:
    """There are two. (03-locks-and-eviction.md#the-naive-cache)"""
    with pytest.raises(ContractError, match=r"need cache in \('radix', 'naive'\); got cache=lru"):
        PrefixCache("lru", 2, 4)


def test_matching_all_but_the_last_token_needs_a_token() -> None:
    """An empty prompt has no last token. (05-prefill-and-chunking.md#admission)"""
    with pytest.raises(ContractError, match="match_all_but_last: need at least one token"):
        PrefixCache("radix", 2, 4).match_all_but_last(())


def test_all_but_the_last_token_may_match() -> None:
    """A prompt of two cached pages matches one of them. (05-prefill-and-chunking.md#admission)"""
    assert cache_with((1, 2, 3, 4)).match_all_but_last((1, 2, 3, 4)).prefix_len == 2


def test_a_handle_names_a_gone_node_in_the_view() -> None:
    """A view can show a broken state. (03-locks-and-eviction.md#state)"""
    tree = RadixTree(1)
    handle = tree.insert_prefix((1,), (0,)).handle
    tree.evict(1)

    assert (handle.view().node_id, [node.node_id for node in tree.view().nodes]) == (1, [0])
