"""Errors were assertions, or missing (deviation 15).

Upstream failed an assertion where `evict` promises an error, had no `reset`, raised where the slots of
a root handle were asked for, and its region of lazy frees could not be entered twice and held views of
rows. Broken: refusal_changes_nothing.
"""

from __future__ import annotations

from array import array

import pytest

from minisgl_ref.checks import CheckLevel
from minisgl_ref.kvcache.radix_cache import RadixCache
from minisgl_ref.scheduler.cache import CacheManager
from minisgl_spec.contracts import refusal_changes_nothing
from minisgl_spec.errors import ContractError

from .engines import ours, run_until_idle


def key_of(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


TOO_MUCH = (
    "evict: need size <= evictable_size; got size=3, evictable_size=2, protected_size=2. "
    "Unlock a handle or ask for less."
)
NEGATIVE = "evict: need size >= 0; got size=-1, evictable_size=2, protected_size=2."


@pytest.mark.parametrize(("size", "message"), [(3, TOO_MUCH), (-1, NEGATIVE)])
def test_evicting_too_much_or_less_than_nothing_is_refused(size: int, message: str) -> None:
    """The message has every value, and nothing changed. (03-locks-and-eviction.md#evict)"""
    cache = RadixCache(page_size=1)
    cache.lock(cache.insert_prefix(key_of(1, 2), [0, 1]).handle)
    cache.insert_prefix(key_of(3, 4), [2, 3])
    before = cache.view()

    with pytest.raises(ContractError) as refused:
        cache.evict(size)

    assert str(refused.value) == message
    assert list(refusal_changes_nothing(before, cache.view())) == []


def test_the_root_has_no_pages() -> None:
    """A handle of nothing is no error. (02-radix-tree.md#match)"""
    assert RadixCache(page_size=1).match_prefix(key_of(1, 2)).pages() == []


def test_a_region_of_batched_frees_may_be_entered_twice() -> None:
    """The outermost region frees, in the order in which pages were given back. (06-decode-and-release.md)"""
    manager = CacheManager(RadixCache(page_size=1), 4, CheckLevel.FULL)
    pages = manager.allocate(4)

    with manager.batched_frees():
        manager.give_back([2])
        with manager.batched_frees():
            manager.give_back([0])
        inside = list(manager.free_pages)
    manager.give_back([pages[1], pages[3]])

    assert inside == []
    assert list(manager.free_pages) == [2, 0, 1, 3]


def test_what_was_given_back_is_a_copy() -> None:
    """A row that is rewritten inside the region does not change what is freed. (06-decode-and-release.md)"""
    manager = CacheManager(RadixCache(page_size=1), 2, CheckLevel.FULL)
    row = manager.allocate(2)

    with manager.batched_frees():
        manager.give_back(row)
        row[:] = [7, 7]

    assert list(manager.free_pages) == [0, 1]


def test_reset_is_refused_while_a_handle_is_locked() -> None:
    """A running request holds its prefix; nothing changed. (03-locks-and-eviction.md#reset)"""
    target = ours()
    target.submit(1, (1, 2, 3), 2)
    target.step()
    before = target.view()

    with pytest.raises(ContractError) as refused:
        target.reset()

    assert str(refused.value) == (
        "reset: need no locked handle; got locked_handles=1, protected_size=0. "
        "Finish or abort the requests that hold them."
    )
    assert list(refusal_changes_nothing(before, target.view())) == []


def test_reset_frees_every_page_of_an_idle_engine() -> None:
    """Nothing is cached afterwards, pages are in order of number. (03-locks-and-eviction.md#reset)"""
    target = ours(num_pages=6)
    target.submit(1, (1, 2, 3), 2)
    run_until_idle(target)

    target.reset()

    view = target.view()
    assert (view.free_pages, view.cache.evictable_size) == (tuple(range(6)), 0)
