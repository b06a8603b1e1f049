"""The integrity check checked nothing (deviation 13; mini-sglang issues 149 and 150).

Upstream's `check_integrity` of the tree is `pass`; the one check beside it adds up page counts, and the
sum stays right while a page is owned twice. Broken: pages_partitioned.
"""

from __future__ import annotations

import pytest

from minisgl_ref.checks import CheckLevel
from minisgl_ref.testing import EngineUnderTest, make_engine_target
from minisgl_spec.errors import InvariantError

from .engines import CONFIG, run_until_idle


def idle_engine_with_a_cached_prefix() -> EngineUnderTest:
    """Pages 0 to 3 are cached, all others are free."""
    target = make_engine_target({**CONFIG, "num_pages": 6}, CheckLevel.OFF)
    target.submit(1, (1, 2, 3), 2)
    run_until_idle(target)
    return target


def num_pages_counted(target: EngineUnderTest) -> int:
    """What upstream adds up."""
    cache = target.scheduler.cache
    return len(cache.free_pages) + cache.prefix_cache.evictable_size // cache.page_size


def test_a_page_owned_twice_is_found_though_the_sum_is_right() -> None:
    """Page 5 is lost and page 0 is free as well as cached: six pages, still. (invariants.md)"""
    target = idle_engine_with_a_cached_prefix()
    target.scheduler.cache.free_pages.remove(5)
    target.scheduler.cache.free_pages.append(0)
    assert num_pages_counted(target) == 6

    with pytest.raises(InvariantError) as found:
        target.scheduler.check_integrity()

    assert str(found.value) == (
        "pages_partitioned: page 0 is owned by free, node 1\npages_partitioned: page 5 is owned by nobody"
    )


def test_a_right_engine_passes() -> None:
    """Nothing is raised, nothing changes. (invariants.md)"""
    target = idle_engine_with_a_cached_prefix()
    before = target.view()

    target.scheduler.check_integrity()

    assert target.view() == before


def test_a_violation_brings_a_drawing() -> None:
    """Numbers in the message, the drawing in a note. (invariants.md)"""
    target = idle_engine_with_a_cached_prefix()
    target.scheduler.cache.prefix_cache.evictable_size += 1

    with pytest.raises(InvariantError) as found:
        target.scheduler.check_integrity()

    assert str(found.value) == (
        "sizes_match_locks: recorded evictable_size=5, protected_size=0; counted 4, 0"
    )
    (drawing,) = found.value.__notes__
    assert drawing.splitlines() == [
        "root",
        "  [1 2 3] slots=0-2 ref_count=0",
        "    [10] slots=3 ref_count=0",
        "evictable=5 protected=0",
        "free pages 4-5; retired pages none; free rows 0-3",
    ]
