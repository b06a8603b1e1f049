"""Claims about the engine's radix tree: what a match finds, what an insertion keeps, what is refused.

Keys are written as tokens and pages as numbers; `page_size` is 2 unless a claim is about another.
Guide: tests/README.md
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from minisgl_ref.kvcache.base import Handle, PrefixCache
from minisgl_ref.kvcache.naive_cache import NaiveCache
from minisgl_ref.kvcache.radix_cache import RadixCache, common_tokens
from minisgl_spec import invariants
from minisgl_spec.errors import ContractError


def key_of(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def tree_with(*prefixes: tuple[tuple[int, ...], list[int]], page_size: int = 2) -> RadixCache:
    tree = RadixCache(page_size)
    for tokens, pages in prefixes:
        tree.insert_prefix(key_of(*tokens), pages)
    return tree


def found(tree: PrefixCache, *tokens: int) -> tuple[int, list[int]]:
    handle = tree.match_prefix(key_of(*tokens))
    return handle.prefix_len, handle.pages()


def locked(tree: PrefixCache, *tokens: int) -> Handle:
    handle = tree.match_prefix(key_of(*tokens))
    tree.lock(handle)
    return handle


def refusal(tree: PrefixCache, call: Callable[[], object]) -> str:
    """The message of a refused call, which must leave the view as it was."""
    before = tree.view()
    with pytest.raises(ContractError) as refused:
        call()
    assert tree.view() == before
    return str(refused.value)


# -- match and insert ------------------------------------------------------------------------------


def test_a_match_finds_whole_pages_only():
    """What is left of the key after the last whole page is not matched. (02-radix-tree.md#match)"""
    tree = tree_with(((1, 2, 3, 4), [7, 5]))

    assert found(tree, 1, 2, 3) == (2, [7])


def test_a_match_of_nothing_is_a_handle_of_the_root():
    """An empty key, or one that begins otherwise, matches no token. (02-radix-tree.md#match)"""
    tree = tree_with(((1, 2, 3, 4), [7, 5]))

    assert [found(tree), found(tree, 2, 1), found(tree, 1, 3, 3, 4)] == [(0, []), (0, []), (0, [])]


def test_a_match_inside_a_node_splits_it_and_keeps_every_page():
    """The upper half is a new node, the lower half keeps its identity. (02-radix-tree.md#match)"""
    tree = tree_with(((1, 2, 3, 4), [7, 5]))

    tree.match_prefix(key_of(1, 2, 9, 9))

    nodes = [(node.node_id, node.parent, node.key, node.slots) for node in tree.view().nodes]
    assert nodes == [(0, None, (), ()), (1, 2, (3, 4), (10, 11)), (2, 0, (1, 2), (14, 15))]


def test_a_partly_matched_node_is_refreshed_before_its_split():
    """Both halves carry the tick of the operation that split them. (02-radix-tree.md#match)"""
    tree = tree_with(((1, 2, 3, 4), [0, 1]), ((5, 6), [2]))

    tree.match_prefix(key_of(1, 2, 9, 9))

    assert {node.key: node.last_used for node in tree.view().nodes} == {
        (): 0,
        (1, 2): 3,
        (3, 4): 3,
        (5, 6): 2,
    }


def test_a_handle_stays_valid_when_its_path_is_split():
    """The node of a handle keeps the end of its prefix. (02-radix-tree.md#match)"""
    tree = tree_with(((1, 2, 3, 4, 5, 6), [4, 2, 9]))
    handle = tree.match_prefix(key_of(1, 2, 3, 4, 5, 6))

    tree.match_prefix(key_of(1, 2))

    assert (handle.prefix_len, handle.pages()) == (6, [4, 2, 9])


def test_an_insertion_keeps_what_was_cached_first():
    """The first to insert wins; the caller still owns its pages for the prefix. (02-radix-tree.md#insert)"""
    tree = tree_with(((1, 2, 3, 4), [0, 1]))

    result = tree.insert_prefix(key_of(1, 2, 3, 4, 5, 6), [8, 9, 7])

    assert (result.prefix_len, result.handle.prefix_len, result.handle.pages()) == (4, 6, [0, 1, 7])


def test_an_insertion_takes_whole_pages_only():
    """The tail shorter than a page stays the caller's. (02-radix-tree.md#insert)"""
    tree = RadixCache(2)

    result = tree.insert_prefix(key_of(1, 2, 3), [6, 8])

    assert (result.prefix_len, result.handle.prefix_len, result.handle.pages()) == (0, 2, [6])


def test_an_insertion_copies_the_pages_it_is_given():
    """Changing the list afterwards changes nothing in the tree. (02-radix-tree.md#insert)"""
    tree, pages = RadixCache(2), [6, 8]
    tree.insert_prefix(key_of(1, 2, 3, 4), pages)

    pages[0] = 99

    assert found(tree, 1, 2, 3, 4) == (4, [6, 8])


def test_siblings_may_share_tokens_of_their_first_page():
    """Two children differ in their first page, not in their first token. (02-radix-tree.md#insert)"""
    tree = tree_with(((1, 2), [0]), ((1, 3), [1]))

    assert [found(tree, 1, 2), found(tree, 1, 3)] == [(2, [0]), (2, [1])]


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [
        ((), (1,), 0),
        ((1, 2), (1, 2), 2),
        ((1, 2, 3), (1, 2), 2),
        ((1, 2, 3), (1, 2, 4, 5), 2),
        ((-1, 256), (-1, 512), 1),
        ((1 << 24,), (1 << 25,), 0),
    ],
)
def test_common_tokens_counts_whole_tokens(a: tuple[int, ...], b: tuple[int, ...], length: int):
    """A token that differs in any of its four bytes is another token. (02-radix-tree.md#match)"""
    assert common_tokens(key_of(*a), key_of(*b)) == length


def test_a_comparison_can_be_plugged_in():
    """It is asked only where two keys differ inside a node. (02-radix-tree.md#match)"""
    asked = []

    def compare(a: bytes, b: bytes) -> int:
        asked.append((a, b))
        return common_tokens(a, b)

    tree = RadixCache(1, compare)
    tree.insert_prefix(key_of(1, 2, 3), [0, 1, 2])
    tree.match_prefix(key_of(1, 2, 3))
    tree.match_prefix(key_of(1, 2, 4))

    assert asked == [(key_of(1, 2, 3), key_of(1, 2, 4))]


# -- locks -----------------------------------------------------------------------------------------


def test_a_lock_protects_the_path_and_nothing_else():
    """ref_count of each node on the path counts it, the root's too. (03-locks-and-eviction.md#lock)"""
    tree = tree_with(((1, 2, 3, 4), [0, 1]), ((1, 2, 5, 6), [2, 3]))

    locked(tree, 1, 2, 3, 4)

    ref_counts = {node.key: node.ref_count for node in tree.view().nodes}
    assert ref_counts == {(): 1, (1, 2): 1, (3, 4): 1, (5, 6): 0}
    assert (tree.evictable_size, tree.protected_size) == (2, 4)


def test_both_halves_of_a_locked_node_are_locked():
    """A split changes nothing about what is protected. (03-locks-and-eviction.md#lock)"""
    tree = tree_with(((1, 2, 3, 4), [0, 1]))
    locked(tree, 1, 2, 3, 4)

    tree.match_prefix(key_of(1, 2))

    assert {node.key: node.ref_count for node in tree.view().nodes} == {(): 1, (1, 2): 1, (3, 4): 1}
    assert (tree.evictable_size, tree.protected_size) == (0, 4)


def test_an_unlock_gives_back_what_no_other_handle_protects():
    """A node is evictable when the last handle at or below it is unlocked. (03-locks-and-eviction.md#lock)"""
    tree = tree_with(((1, 2, 3, 4), [0, 1]))
    locked(tree, 1, 2)
    deep = locked(tree, 1, 2, 3, 4)

    tree.unlock(deep)

    assert (tree.evictable_size, tree.protected_size) == (2, 2)
    invariants.check(tree.view())


def test_a_second_lock_of_a_handle_is_refused():
    """A handle is locked at most once. (decisions/006-a-handle-is-locked-once.md)"""
    tree = tree_with(((1, 2), [0]))
    handle = locked(tree, 1, 2)

    assert refusal(tree, lambda: tree.lock(handle)) == (
        "lock: need a handle that is not locked; got node=1, is_locked=True, in_tree=True. "
        "A handle is locked at most once."
    )


def test_an_unlock_of_an_unlocked_handle_is_refused():
    """Unlocking twice would take another request's protection. (decisions/006-a-handle-is-locked-once.md)"""
    tree = tree_with(((1, 2), [0]))
    handle = tree.match_prefix(key_of(1, 2))

    assert refusal(tree, lambda: tree.unlock(handle)) == (
        "unlock: need a locked handle; got node=1, is_locked=False. "
        "It was never locked, or is unlocked twice."
    )


@pytest.mark.parametrize(
    "forget", [lambda tree: tree.evict(2), lambda tree: tree.reset()], ids=["evict", "reset"]
)
def test_a_lock_of_a_handle_whose_node_is_gone_is_refused(forget: Callable[[RadixCache], object]):
    """Between a match and its lock nothing may evict. (decisions/006-a-handle-is-locked-once.md)"""
    tree = tree_with(((1, 2), [0]))
    handle = tree.match_prefix(key_of(1, 2))
    forget(tree)

    assert refusal(tree, lambda: tree.lock(handle)) == (
        "lock: need a handle whose node is in the tree; got node=1, is_locked=False, in_tree=False. "
        "It was evicted, or the cache was reset, before the lock; match again."
    )


def test_a_handle_whose_node_is_gone_has_no_pages():
    """Its pages belong to somebody else by now. (03-locks-and-eviction.md#evict)"""
    tree = tree_with(((1, 2), [0]))
    handle = tree.match_prefix(key_of(1, 2))
    tree.evict(2)

    assert refusal(tree, handle.pages) == (
        "pages: need a handle whose node is in the tree; got node=1, prefix_len=2. "
        "Its pages were evicted, or the cache was reset; match again."
    )


def test_a_handle_of_another_cache_is_refused():
    """A handle belongs to the cache that made it. (decisions/006-a-handle-is-locked-once.md)"""
    tree, other = tree_with(((1, 2), [0])), tree_with(((1, 2), [0]))
    handle = locked(other, 1, 2)

    assert refusal(tree, lambda: tree.lock(handle)).startswith(
        "lock: need a handle of this cache; got node=1"
    )
    assert refusal(tree, lambda: tree.unlock(handle)).startswith(
        "unlock: need a handle of this cache; got node=1"
    )


# -- refused arguments, reset, the naive cache -----------------------------------------------------


@pytest.mark.parametrize("make", [RadixCache, NaiveCache])
def test_a_key_of_broken_tokens_is_refused(make: Callable[[int], PrefixCache]):
    """A token is four bytes. (02-radix-tree.md#match)"""
    tree = make(2)

    match = refusal(tree, lambda: tree.match_prefix(b"12345"))
    insert = refusal(tree, lambda: tree.insert_prefix(b"12345", [0]))

    need = "need a key of 4 bytes per token; got key_bytes=5. Keys are int32 tokens in native order."
    assert (match, insert) == (f"match_prefix: {need}", f"insert_prefix: {need}")


@pytest.mark.parametrize("make", [RadixCache, NaiveCache])
def test_an_insertion_without_a_page_for_every_page_of_the_key_is_refused(make: Callable[[int], PrefixCache]):
    """Every whole page of the key needs its page number. (02-radix-tree.md#insert)"""
    tree = make(2)

    assert refusal(tree, lambda: tree.insert_prefix(key_of(1, 2, 3, 4), [5])) == (
        "insert_prefix: need a page for every whole page of the key; got pages=1, key_pages=2, page_size=2."
    )


@pytest.mark.parametrize("make", [RadixCache, NaiveCache])
def test_a_reset_while_a_handle_is_locked_is_refused(make: Callable[[int], PrefixCache]):
    """A request reads what a reset would forget; root handles count. (03-locks-and-eviction.md#reset)"""
    tree = make(2)
    locked(tree, 1, 2)

    assert refusal(tree, tree.reset) == (
        "reset: need no locked handle; got locked_handles=1, protected_size=0. "
        "Finish or abort the requests that hold them."
    )


def test_a_reset_forgets_everything_and_returns_every_page():
    """After a reset nothing is cached and nothing evictable. (03-locks-and-eviction.md#reset)"""
    tree = tree_with(((1, 2, 3, 4), [4, 1]), ((1, 2, 5, 6), [9, 3]), ((7, 8), [2]))

    pages = tree.reset()

    assert sorted(pages) == [1, 2, 3, 4]
    assert (tree.evictable_size, tree.evictable_leaves(), found(tree, 1, 2)) == (0, [], (0, []))


def test_page_size_is_positive():
    """There is no page of no slots. (01-pages-and-slots.md)"""
    with pytest.raises(ContractError) as refused:
        RadixCache(0)

    assert str(refused.value) == "RadixCache: need page_size >= 1; got page_size=0."


def test_the_naive_cache_caches_nothing_and_counts_locks():
    """The root counts its handles. (03-locks-and-eviction.md#the-naive-cache)"""
    cache = NaiveCache(2)
    result = cache.insert_prefix(key_of(1, 2, 3, 4), [0, 1])
    handle = locked(cache, 1, 2, 3, 4)

    assert (result.prefix_len, result.handle.prefix_len, result.handle.pages()) == (0, 0, [])
    assert [node.ref_count for node in cache.view().nodes] == [1]
    assert (found(cache, 1, 2), cache.evict(0)) == ((0, []), [])

    cache.unlock(handle)

    assert [node.ref_count for node in cache.view().nodes] == [0]
    assert cache.reset() == []


def test_the_naive_cache_has_nothing_to_evict():
    """evictable_size is 0 whatever was inserted. (03-locks-and-eviction.md#evict)"""
    cache = NaiveCache(2)
    cache.insert_prefix(key_of(1, 2), [0])

    assert refusal(cache, lambda: cache.evict(1)) == (
        "evict: need size <= evictable_size; got size=1, evictable_size=0, protected_size=0. "
        "Unlock a handle or ask for less."
    )
