"""One half of a node that was just used was evicted first (deviation 14).

Upstream left a partly matched node its old time when it was split, and the half that had just been
used was the first to go. Broken: agrees_with_oracle.
"""

from __future__ import annotations

from array import array

from minisgl_ref.kvcache.radix_cache import RadixCache


def key_of(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def cache_with_an_old_and_a_newer_prefix() -> RadixCache:
    cache = RadixCache(page_size=1)
    cache.insert_prefix(key_of(1, 2, 3, 4), [0, 1, 2, 3])
    cache.insert_prefix(key_of(7, 8), [4, 5])
    return cache


def last_used_of(cache: RadixCache) -> dict[tuple[int, ...], int]:
    return {node.key: node.last_used for node in cache.view().nodes if node.key}


def test_a_match_inside_a_node_refreshes_both_halves() -> None:
    """The node is refreshed, then split. (02-radix-tree.md#match)"""
    cache = cache_with_an_old_and_a_newer_prefix()

    cache.match_prefix(key_of(1, 2, 9))

    assert last_used_of(cache) == {(1, 2): 3, (3, 4): 3, (7, 8): 2}


def test_an_insertion_that_ends_inside_a_node_refreshes_both_halves() -> None:
    """An insertion touches what a match touches. (02-radix-tree.md#insert)"""
    cache = cache_with_an_old_and_a_newer_prefix()

    cache.insert_prefix(key_of(1, 2, 9), [0, 1, 6])

    assert last_used_of(cache) == {(1, 2): 3, (3, 4): 3, (7, 8): 2, (9,): 3}


def test_what_was_just_used_is_not_evicted_first() -> None:
    """The victim is the prefix that nobody asked for since. (03-locks-and-eviction.md#evict)"""
    cache = cache_with_an_old_and_a_newer_prefix()
    cache.match_prefix(key_of(1, 2, 9))

    assert cache.evict(1) == [4, 5]
