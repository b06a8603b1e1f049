"""Claims about eviction in the engine's radix tree: who goes first, and how little is looked at.

Pages are of two tokens unless a claim is about another size.
Guide: tests/README.md
"""

from __future__ import annotations

from array import array

import pytest

from minisgl_ref.bench.eviction import PAGE_SIZE, tree_of_leaves
from minisgl_ref.kvcache.radix_cache import RadixCache
from minisgl_spec.errors import ContractError


def key_of(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def tree_with(*prefixes: tuple[tuple[int, ...], list[int]], page_size: int = 2) -> RadixCache:
    tree = RadixCache(page_size)
    for tokens, pages in prefixes:
        tree.insert_prefix(key_of(*tokens), pages)
    return tree


def test_the_least_recently_used_leaf_goes_first():
    """A match makes a leaf the most recently used. (03-locks-and-eviction.md#evict)"""
    tree = tree_with(((1, 2), [0]), ((3, 4), [1]), ((5, 6), [2]))
    tree.match_prefix(key_of(1, 2))

    assert [tree.evict(2), tree.evict(2), tree.evict(2)] == [[1], [2], [0]]


def test_a_leaf_is_evicted_whole():
    """More may be freed than was asked; pages come in order of position. (03-locks-and-eviction.md#evict)"""
    tree = tree_with(((1, 2, 3, 4, 5, 6), [9, 3, 6]))

    assert (tree.evict(1), tree.evictable_size) == ([9, 3, 6], 0)


def test_a_parent_goes_after_its_last_child():
    """A node without children is a leaf, whatever it was before. (03-locks-and-eviction.md#evict)"""
    tree = tree_with(((1, 2, 3, 4), [0, 1]), ((1, 2, 5, 6), [2, 3]))

    assert tree.evict(6) == [1, 3, 0]


def test_of_two_leaves_of_one_tick_the_older_node_goes_first():
    """An insertion that splits a leaf leaves two with one tick. (03-locks-and-eviction.md#evict)"""
    tree = tree_with(((1, 2, 3, 4), [0, 1]), ((1, 2, 5, 6), [2, 3]))
    ticks = {node.key: node.last_used for node in tree.view().nodes}

    assert (ticks[3, 4], ticks[5, 6], tree.evict(2)) == (2, 2, [1])


def test_the_half_just_used_is_not_evicted_first():
    """Upstream leaves a partly matched node as old as it was. (deviations.md)"""
    tree = tree_with(((1, 2, 3, 4), [0, 1]), ((5, 6), [2]))
    tree.match_prefix(key_of(1, 2))

    assert tree.evict(2) == [2]


def test_a_locked_leaf_is_passed_over_and_comes_back_in_its_turn():
    """An unlocked leaf is as old as its last use, not as its unlock. (03-locks-and-eviction.md#evict)"""
    tree = tree_with(((1, 2), [0]), ((3, 4), [1]), ((5, 6), [2]))
    handle = tree.match_prefix(key_of(1, 2))
    tree.lock(handle)
    tree.match_prefix(key_of(3, 4))
    first = tree.evict(2)

    tree.unlock(handle)

    assert (first, tree.evict(2), tree.evict(2)) == ([2], [0], [1])


def test_nothing_above_a_lock_is_evicted():
    """A path is protected up to the root. (03-locks-and-eviction.md#lock)"""
    tree = tree_with(((1, 2, 3, 4), [0, 1]), ((1, 2, 5, 6), [2, 3]))
    tree.lock(tree.match_prefix(key_of(1, 2, 3, 4)))

    assert (tree.evict(2), tree.evictable_size, tree.protected_size) == ([3], 0, 4)


@pytest.mark.parametrize(
    ("size", "need", "advice"),
    [(-1, "size >= 0", ""), (4, "size <= evictable_size", " Unlock a handle or ask for less.")],
)
def test_what_cannot_be_evicted_is_refused(size: int, need: str, advice: str):
    """A refused eviction changes nothing. (03-locks-and-eviction.md#evict)"""
    tree = tree_with(((1, 2), [0]), ((3, 4), [1]))
    tree.lock(tree.match_prefix(key_of(1, 2)))
    before = tree.view()

    with pytest.raises(ContractError) as refused:
        tree.evict(size)

    message = f"evict: need {need}; got size={size}, evictable_size=2, protected_size=2.{advice}"
    assert (str(refused.value), tree.view()) == (message, before)


def test_an_eviction_of_nothing_visits_nothing():
    """evict(0) returns no page. (03-locks-and-eviction.md#evict)"""
    tree = tree_with(((1, 2), [0]))

    assert (tree.evict(0), tree.nodes_visited, tree.evictable_size) == ([], 0, 2)


@pytest.mark.parametrize("num_leaves", [10, 100, 1000])
def test_an_eviction_visits_the_leaves_it_takes_and_no_other(num_leaves: int):
    """A victim is found without a walk, however large the tree. (03-locks-and-eviction.md#evict)"""
    tree = tree_with(*[((leaf,), [leaf]) for leaf in range(num_leaves)], page_size=1)

    assert (tree.evict(5), tree.nodes_visited) == ([0, 1, 2, 3, 4], 5)


def test_every_further_visit_is_paid_for_by_an_earlier_touch():
    """Half the leaves were touched again: one visit a node, one a touch. (03-locks-and-eviction.md#evict)"""
    num_leaves = 1000
    tree = tree_of_leaves(num_leaves)

    tree.evict(tree.evictable_size)

    assert tree.nodes_visited == (num_leaves + 1) + num_leaves // 2


def test_the_queue_never_holds_a_node_twice():
    """However often a leaf is touched and unlocked, it waits once. (03-locks-and-eviction.md#evict)"""
    tree = tree_of_leaves(100)
    for _ in range(10):
        handle = tree.match_prefix(key_of(*[0] * PAGE_SIZE, *[1] * PAGE_SIZE))
        tree.lock(handle)
        tree.unlock(handle)

    assert len(tree.evictable_leaves()) == 100
