"""Claims about who owns which page: taking, evicting on demand, giving back, and what the checks see.

Pages are of two tokens. A manager is made with FULL checks unless a claim is about another level.
Guide: tests/README.md
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from minisgl_ref.checks import CheckLevel, check_full, check_local
from minisgl_ref.kvcache.base import Handle
from minisgl_ref.kvcache.naive_cache import NaiveCache
from minisgl_ref.kvcache.radix_cache import RadixCache
from minisgl_ref.scheduler.cache import CacheManager
from minisgl_spec.errors import ContractError, InvariantError


def key_of(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def manager_of(num_pages: int, level: CheckLevel = CheckLevel.FULL) -> CacheManager:
    return CacheManager(RadixCache(2), num_pages, level)


def cached(manager: CacheManager, *tokens: int) -> Handle:
    """Cache whole pages of tokens as a request does: take pages, insert, keep no lock."""
    key = key_of(*tokens)
    return manager.insert(key, manager.allocate(len(tokens) // 2)).handle


def state(manager: CacheManager) -> tuple[object, ...]:
    return list(manager.free_pages), manager.prefix_cache.view(), manager.available_pages


def refusal(manager: CacheManager, call: Callable[[], object]) -> str:
    before = state(manager)
    with pytest.raises(ContractError) as refused:
        call()
    assert state(manager) == before
    return str(refused.value)


def violation(call: Callable[[], object]) -> tuple[str, str]:
    """The rule a check named, and its fact."""
    with pytest.raises(InvariantError) as broken:
        call()
    (found,) = broken.value.violations
    return found.rule, found.fact


# -- match -----------------------------------------------------------------------------------------


def test_a_match_leaves_the_last_token_to_compute():
    """The logits of the last token choose the first output. (02-radix-tree.md#match)"""
    manager = manager_of(4)
    cached(manager, 1, 2, 3, 4)

    assert manager.match_request(key_of(1, 2, 3, 4)).prefix_len == 2


def test_a_match_may_use_everything_cached_of_a_longer_prompt():
    """Only the prompt's own last token is left out. (02-radix-tree.md#match)"""
    manager = manager_of(4)
    cached(manager, 1, 2, 3, 4)

    assert manager.match_request(key_of(1, 2, 3, 4, 5)).prefix_len == 4


def test_a_match_of_an_empty_prompt_is_refused():
    """There is no last token to leave out. (02-radix-tree.md#match)"""
    manager = manager_of(4)

    message = "match_request: need at least one token; got key_bytes=0."
    assert refusal(manager, lambda: manager.match_request(b"")) == message


# -- allocate --------------------------------------------------------------------------------------


def test_free_pages_are_handed_out_first_in_first_out():
    """What was given back last is handed out last. (decisions/007-eviction-order.md)"""
    manager = manager_of(4)
    manager.give_back(manager.allocate(2))

    assert manager.allocate(4) == [2, 3, 0, 1]


def test_only_the_shortfall_is_evicted():
    """Free pages are used first. (decisions/007-eviction-order.md)"""
    manager = manager_of(4)
    cached(manager, 1, 2)
    cached(manager, 3, 4, 5, 6)

    pages = manager.allocate(2)

    assert (pages, manager.last_evicted, list(manager.free_pages)) == ([3, 0], [0], [])


def test_an_allocation_from_the_free_list_evicts_nothing():
    """last_evicted tells of the latest allocation only. (03-locks-and-eviction.md#who-frees-the-page)"""
    manager = manager_of(2)
    cached(manager, 1, 2)
    manager.give_back(manager.allocate(2))

    manager.allocate(1)

    assert manager.last_evicted == []


def test_pages_evicted_beyond_the_need_stay_free():
    """A leaf is evicted whole. (decisions/007-eviction-order.md)"""
    manager = manager_of(3)
    cached(manager, 1, 2, 3, 4, 5, 6)

    assert (manager.allocate(1), list(manager.free_pages)) == ([0], [1, 2])


def test_available_is_free_and_evictable():
    """A lock takes its path out of what is available. (03-locks-and-eviction.md#lock)"""
    manager = manager_of(5)
    handle = cached(manager, 1, 2, 3, 4)
    before = manager.available_pages

    manager.lock(handle)

    assert (before, manager.available_pages) == (5, 3)


@pytest.mark.parametrize(
    ("num_pages", "need", "advice"),
    [
        (4, "num_pages <= available_pages", " Admission must count the pages that allocation will take."),
        (-1, "num_pages >= 0", ""),
    ],
)
def test_an_allocation_of_more_than_is_available_is_refused(num_pages: int, need: str, advice: str):
    """Nothing is evicted for an allocation that cannot succeed. (deviations.md)"""
    manager = manager_of(4)
    cached(manager, 1, 2)
    manager.lock(cached(manager, 3, 4))

    assert refusal(manager, lambda: manager.allocate(num_pages)) == (
        f"allocate: need {need}; got num_pages={num_pages}, available_pages=3, free_pages=2, "
        f"evictable_size=2, protected_size=2.{advice}"
    )


def test_a_pool_has_pages():
    """A pool of no pages serves nobody. (01-pages-and-slots.md)"""
    with pytest.raises(ContractError) as refused:
        manager_of(0)

    assert str(refused.value) == "CacheManager: need num_pages >= 1; got num_pages=0."


# -- give back -------------------------------------------------------------------------------------


def test_frees_of_a_region_happen_at_its_end_in_order():
    """Inside, nothing that was given back can be handed out. (06-decode-and-release.md)"""
    manager = manager_of(4)
    pages = manager.allocate(4)

    with manager.batched_frees():
        manager.give_back(pages[2:])
        manager.give_back(pages[:1])
        inside = manager.available_pages

    assert (inside, list(manager.free_pages)) == (0, [2, 3, 0])


def test_the_outermost_region_frees():
    """Regions nest. (deviations.md)"""
    manager = manager_of(4)
    pages = manager.allocate(4)

    with manager.batched_frees():
        with manager.batched_frees():
            manager.give_back(pages[:1])
        inside = list(manager.free_pages)
        manager.give_back(pages[1:2])

    assert (inside, list(manager.free_pages)) == ([], [0, 1])


def test_a_region_frees_copies():
    """A row that is rewritten before the region ends changes nothing. (deviations.md)"""
    manager = manager_of(4)
    row = manager.allocate(4)

    with manager.batched_frees():
        manager.give_back(row[:2])
        row[:2] = [3, 3]

    assert list(manager.free_pages) == [0, 1]


def test_a_region_frees_after_an_exception_too():
    """What was given back is nobody else's. (06-decode-and-release.md)"""
    manager = manager_of(2)
    pages = manager.allocate(2)

    def fail_inside() -> None:
        with manager.batched_frees():
            manager.give_back(pages)
            raise KeyError("of the caller")

    with pytest.raises(KeyError):
        fail_inside()

    assert list(manager.free_pages) == [0, 1]


@pytest.mark.parametrize("level", [CheckLevel.LOCAL, CheckLevel.FULL])
def test_a_page_given_back_twice_is_noticed(level: CheckLevel):
    """A page is given back exactly once. (invariants.md)"""
    manager = manager_of(4, level)
    pages = manager.allocate(2)
    manager.give_back(pages[:1])

    found = violation(lambda: manager.give_back(pages))

    assert found == ("released_once", "given_back=[0, 1], not_private=[0], free_among_them=[0]")


def test_a_page_named_twice_is_noticed():
    """A page is given back exactly once, within one call too. (invariants.md)"""
    manager = manager_of(4)
    (page,) = manager.allocate(1)

    found = violation(lambda: manager.give_back([page, page]))

    assert found == ("released_once", "given_back=[0, 0], not_private=[], free_among_them=[]")


def test_a_cached_page_given_back_is_noticed():
    """What the tree holds is not the request's to give. (invariants.md)"""
    manager = manager_of(4)
    pages = cached(manager, 1, 2).pages()

    found = violation(lambda: manager.give_back(pages))

    assert found == ("released_once", "given_back=[0], not_private=[0], free_among_them=[]")


def test_with_checks_off_a_page_given_back_twice_goes_unnoticed():
    """OFF is for benchmarks, and for faults that other judges must find. (decisions/011-the-zoo-ships.md)"""
    manager = manager_of(2, CheckLevel.OFF)
    pages = manager.allocate(1)
    manager.give_back(pages)

    manager.give_back(pages)

    assert list(manager.free_pages) == [1, 0, 0]


# -- checks ----------------------------------------------------------------------------------------


def test_a_free_page_that_is_inserted_is_noticed():
    """Every page has one owner. (invariants.md)"""
    manager = manager_of(4, CheckLevel.LOCAL)

    rule, fact = violation(lambda: manager.insert(key_of(1, 2), [3]))

    assert (rule, fact) == (
        "pages_partitioned",
        "inserted_pages=[3], not_private=[3], node=1, node_pages=[3]",
    )


def test_a_wrong_size_is_noticed_at_the_next_operation():
    """LOCAL compares the two sizes with the pages that went in and out. (invariants.md)"""
    manager = manager_of(4, CheckLevel.LOCAL)
    handle = cached(manager, 1, 2)
    manager.prefix_cache.evictable_size += 2

    rule, fact = violation(lambda: manager.lock(handle))

    assert (rule, fact) == (
        "sizes_match_locks",
        "evictable_size=2, protected_size=2, cached_pages=1, page_size=2",
    )


def test_a_lost_page_is_noticed_at_the_next_operation():
    """LOCAL counts every page once. (invariants.md)"""
    manager = manager_of(4, CheckLevel.LOCAL)
    manager.free_pages.pop()

    rule, fact = violation(lambda: manager.allocate(1))

    assert (rule, fact) == (
        "pages_partitioned",
        "free_pages=2, cached_pages=0, private_pages=1, waiting_pages=0, num_pages=4",
    )


def test_full_checks_recompute_ref_counts_and_draw_the_tree():
    """FULL checks every invariant after every operation; the drawing is a note. (invariants.md)"""
    manager = manager_of(4)
    handle = cached(manager, 1, 2)
    handle.node.ref_count = 1

    with pytest.raises(InvariantError) as broken:
        manager.match_request(key_of(3))

    assert [found.rule for found in broken.value.violations] == [
        "ref_count_counts_handles",
        "sizes_match_locks",
    ]
    assert broken.value.__notes__ == ["root\n  [1 2] slots=0-1 ref_count=1\nevictable=2 protected=0"]


def test_two_owners_of_a_page_are_noticed_by_check_integrity():
    """A page on the free list and in a node: the sum is right, the owners are not. (invariants.md)"""
    manager = manager_of(2, CheckLevel.LOCAL)
    cached(manager, 1, 2)
    manager.free_pages[0] = 0

    rule, fact = violation(manager.check_integrity)

    assert (rule, fact) == (
        "pages_partitioned",
        "free_pages=[0], cached_pages=[0], private_pages=[], waiting_pages=[], lost_pages=[1]",
    )


def test_a_local_check_that_holds_says_nothing():
    """Only a broken promise stops. (invariants.md)"""
    check_local(True, "sizes_match_locks", evictable_size=0)

    found = violation(lambda: check_local(False, "sizes_match_locks", evictable_size=0, counted=2))

    assert found == ("sizes_match_locks", "evictable_size=0, counted=2")


def test_a_full_check_of_a_right_view_says_nothing():
    """A fresh cache violates nothing. (invariants.md)"""
    check_full(RadixCache(2).view())


# -- reset, and a cache that caches nothing --------------------------------------------------------


def test_a_reset_frees_every_page_in_order_of_number():
    """After a reset the pool is as it was at first. (03-locks-and-eviction.md#reset)"""
    manager = manager_of(4)
    cached(manager, 1, 2, 3, 4)
    cached(manager, 5, 6)

    manager.reset()

    assert list(manager.free_pages) == [0, 1, 2, 3]


def test_a_reset_while_a_handle_is_locked_is_refused():
    """A running request reads what a reset would free. (03-locks-and-eviction.md#reset)"""
    manager = manager_of(4)
    manager.lock(cached(manager, 1, 2))

    assert refusal(manager, manager.reset).startswith("reset: need no locked handle; got locked_handles=1")


def test_without_caching_every_page_stays_private():
    """The request gives back all of them. (03-locks-and-eviction.md#the-naive-cache)"""
    manager = CacheManager(NaiveCache(2), 2, CheckLevel.FULL)
    pages = manager.allocate(2)
    result = manager.insert(key_of(1, 2, 3, 4), pages)

    manager.give_back(pages[result.handle.prefix_len // 2 :])

    assert (result.prefix_len, list(manager.free_pages)) == (0, [0, 1])
