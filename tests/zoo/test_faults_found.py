"""A sample of the zoo is hunted: found within a few programs, and named as declared.

The whole zoo is what `minisgl-ref bugs --all` hunts.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minisgl_ref.zoo import FAULTS

MOST_PROGRAMS = 1500

SAMPLE = (
    "whole_prompt_is_matched",
    "no_second_look_after_the_lock",
    "eviction_takes_a_locked_parent",
    "parent_is_not_queued_again",
    "clamped_for_everybody",
    "decode_in_the_order_of_ids",
    "sums_are_all_that_is_checked",
    "eviction_beyond_the_limit_asserts",
    "split_forgets_the_lock",
    "match_is_kept_over_a_refusal",
    "chunk_writes_its_sample",
    "staging_is_shared",
    "row_is_rewritten_on_the_host_only",
    "reset_loses_its_pages",
    "naive_eviction_asserts",
    "values_do_not_follow_keys",
)
"""The rare ones, an undo or two, and one of each place."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_is_found(hunt: Callable[..., Any], name: str) -> None:
    """With the engine's own checks off; its declared rule is among those that are broken. (zoo/fault.py)"""
    fault = FAULTS[name]

    found = hunt(fault, fault.level, seed=1, programs=MOST_PROGRAMS, most=3)

    assert fault.rule in [finding.rule for finding in found]
