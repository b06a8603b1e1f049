"""Claims about match, insert and split.

Guide: spec/02-radix-tree.md
"""

from __future__ import annotations

import pytest

from minisgl_spec.errors import ContractError
from minisgl_spec.radix_tree import RadixTree

from .oracle import locked, pairs, ref_counts, tree_with


def test_nothing_matches_in_an_empty_tree() -> None:
    """A miss is a handle on the root, of no token. (02-radix-tree.md#match)"""
    handle = RadixTree(2).match_prefix((1, 2))

    assert (handle.prefix_len, handle.slots(), handle.is_locked) == (0, (), False)


def test_an_empty_prompt_matches_nothing() -> None:
    """No tokens match no tokens. (02-radix-tree.md#match)"""
    assert tree_with((1, 2)).match_prefix(()).prefix_len == 0


def test_a_match_covers_whole_pages_only() -> None:
    """Three equal tokens are one page of two. (02-radix-tree.md#match)"""
    handle = tree_with((1, 2, 3, 4)).match_prefix((1, 2, 3))

    assert (handle.prefix_len, handle.slots()) == (2, (0, 1))


def test_a_prompt_may_match_whole() -> None:
    """Leaving the last token out is the caller's task. (02-radix-tree.md#match)"""
    assert tree_with((1, 2, 3, 4)).match_prefix((1, 2, 3, 4)).prefix_len == 4


def test_a_match_goes_on_over_several_nodes() -> None:
    """Slots are told from the root down, in order of position. (02-radix-tree.md#match)"""
    tree = tree_with((1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6))

    handle = tree.match_prefix((1, 2, 3, 4, 5, 6, 7, 7))

    assert handle.slots() == (0, 1, 4, 5, 10, 11)


def test_match_splits_a_node_but_keeps_every_cached_slot() -> None:
    """Matching inside a node splits it; the cached pairs of prefix and slot stay. (02-radix-tree.md#split)"""
    tree = tree_with((1, 2, 3, 4))

    tree.match_prefix((1, 2, 9, 9))

    assert pairs(tree) == {(1, 2): (0, 1), (1, 2, 3, 4): (2, 3)}
    assert ref_counts(tree) == {(1, 2): 0, (3, 4): 0}


def test_a_lock_covers_both_halves_of_a_split() -> None:
    """A handle on the lower half reaches the upper one. (02-radix-tree.md#split)"""
    tree = tree_with((1, 2, 3, 4))
    handle = locked(tree, 1, 2, 3, 4)

    tree.match_prefix((1, 2, 9, 9))

    assert ref_counts(tree) == {(1, 2): 1, (3, 4): 1}
    assert (handle.prefix_len, handle.slots()) == (4, (0, 1, 2, 3))


def test_a_split_refreshes_both_halves() -> None:
    """A partly matched node is refreshed before it is split. (02-radix-tree.md#split)"""
    tree = tree_with((1, 2, 3, 4), (7, 8))

    tree.match_prefix((1, 2, 9, 9))

    assert {node.key: node.last_used for node in tree.view().nodes} == {
        (): 0,
        (1, 2): 3,
        (3, 4): 3,
        (7, 8): 2,
    }


def test_a_match_at_a_page_boundary_between_nodes_splits_nothing() -> None:
    """Whole nodes stay whole. (02-radix-tree.md#match)"""
    tree = tree_with((1, 2), (1, 2, 3, 4))

    tree.match_prefix((1, 2, 9, 9))

    assert ref_counts(tree) == {(1, 2): 0, (3, 4): 0}


def test_siblings_may_begin_with_the_same_token() -> None:
    """Two children differ in their first page, not in their first token. (02-radix-tree.md#insert)"""
    tree = tree_with((1, 2), (1, 3))

    handle = tree.match_prefix((1, 3, 5, 5))

    assert (ref_counts(tree), handle.slots()) == ({(1, 2): 0, (1, 3): 0}, (2, 3))


def test_an_insertion_takes_whole_pages_only() -> None:
    """The tail that fills no page stays the caller's. (02-radix-tree.md#insert)"""
    tree = RadixTree(2)

    result = tree.insert_prefix((1, 2, 3), (4, 5, 6))

    assert (result.prefix_len, result.handle.prefix_len, pairs(tree)) == (0, 2, {(1, 2): (4, 5)})


def test_the_first_to_insert_wins() -> None:
    """What is cached stays as it is; prefix_len says how much that was. (02-radix-tree.md#insert)"""
    tree = tree_with((1, 2))

    result = tree.insert_prefix((1, 2, 3, 4), (6, 7, 8, 9))

    assert (result.prefix_len, result.handle.prefix_len) == (2, 4)
    assert pairs(tree) == {(1, 2): (0, 1), (1, 2, 3, 4): (8, 9)}


def test_an_insertion_that_diverges_inside_a_node_splits_it() -> None:
    """Both continuations hang below the common part. (02-radix-tree.md#insert)"""
    tree = tree_with((1, 2, 3, 4))

    tree.insert_prefix((1, 2, 5, 6), (0, 1, 6, 7))

    assert pairs(tree) == {(1, 2): (0, 1), (1, 2, 3, 4): (2, 3), (1, 2, 5, 6): (6, 7)}


def test_inserting_less_than_a_page_caches_nothing() -> None:
    """The handle is then one on the root. (02-radix-tree.md#insert)"""
    tree = RadixTree(4)

    result = tree.insert_prefix((1, 2), (0, 1))

    assert (result.prefix_len, result.handle.prefix_len, pairs(tree)) == (0, 0, {})


def test_a_new_node_is_evictable_until_it_is_locked() -> None:
    """An insertion's handle is not locked. (02-radix-tree.md#insert)"""
    tree = tree_with((1, 2, 3, 4))

    assert (tree.evictable_size, tree.protected_size) == (4, 0)


def test_an_insertion_needs_a_slot_for_each_token() -> None:
    """Lengths that differ are refused, and nothing changes. (02-radix-tree.md#insert)"""
    tree = tree_with((1, 2))
    before = tree.view()

    with pytest.raises(ContractError, match="need one slot per token; got tokens=2, slots=1"):
        tree.insert_prefix((1, 2), (0,))

    assert tree.view() == before


def test_a_tree_needs_pages() -> None:
    """A page has at least one slot. (02-radix-tree.md#state)"""
    with pytest.raises(ContractError, match="need page_size >= 1; got page_size=0"):
        RadixTree(0)
