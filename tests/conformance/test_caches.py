"""What the fuzzer says of caches: the oracle is clean, a wrong tree is named, a different one left alone."""

from __future__ import annotations

import pytest
from broken_caches import RIGHT, WRONG, BlindCacheOf, CacheOf, SplitLosesLock, target_of

from minisgl_conformance import ConformanceError, run_conformance, run_program
from minisgl_conformance.adapters.oracle import OracleCache
from minisgl_conformance.fuzz import fuzz
from minisgl_conformance.runner import make_runner
from minisgl_spec.radix_tree import RadixTree

RADIX = {"cache": "radix"}
SMALL = {"page_size": 1, "num_pages": 4, "cache": "radix"}
INSERT = {"op": "insert", "ids": [1, 2], "handle": None}  # into pages 0 and 1
REFUSED = {"op": "unlock", "handle": 0}


def test_the_oracle_keeps_its_own_rules_as_a_cache() -> None:
    """The oracle's tree passes every judge, and claims all there is to claim. (spec/README.md)"""
    summary = run_conformance(OracleCache, "cache", examples=60, seed=1)

    assert (summary.num_programs, summary.findings, summary.not_claimed) == (60, [], ())


@pytest.mark.parametrize("tree", WRONG, ids=lambda tree: tree.__name__)
def test_a_wrong_cache_is_found_by_the_rule_it_breaks(tree: type[RadixTree]) -> None:
    """Each mistake is found within a few programs, under the name of the rule. (invariants.md)"""
    summary = fuzz(target_of(tree), "cache", seed=1, examples=300, config=RADIX, shrink=False)

    assert [finding.rule for finding in summary.findings] == [WRONG[tree]]


@pytest.mark.parametrize("tree", WRONG, ids=lambda tree: tree.__name__)
def test_a_wrong_cache_is_found_without_a_view(tree: type[RadixTree]) -> None:
    """What a cache answers is enough to find each mistake. (invariants.md)"""
    summary = fuzz(target_of(tree, BlindCacheOf), "cache", seed=1, examples=300, config=RADIX, shrink=False)

    assert len(summary.findings) == 1


@pytest.mark.parametrize("target", [CacheOf, BlindCacheOf])
@pytest.mark.parametrize("tree", RIGHT, ids=lambda tree: tree.__name__)
def test_a_cache_that_differs_and_is_right_is_left_alone(
    tree: type[RadixTree], target: type[CacheOf]
) -> None:
    """Eager splits, other victims, more victims, handles by prefix: all permitted. (spec/README.md)"""
    summary = fuzz(target_of(tree, target), "cache", seed=1, examples=40, config=RADIX)

    assert summary.findings == []


def test_what_is_not_claimed_is_listed() -> None:
    """A judge that has nothing to look at is named in the summary. (spec/README.md)"""
    summary = fuzz(target_of(RadixTree, BlindCacheOf), "cache", seed=1, examples=1)

    assert summary.not_claimed == ("view", "exact")


def test_a_finding_is_shrunk_and_its_program_repeats_it() -> None:
    """The error carries a program of a few operations that breaks the same rule again. (spec/README.md)"""
    with pytest.raises(ConformanceError) as caught:
        run_conformance(target_of(SplitLosesLock), "cache", page_size=2, seed=1, config=RADIX)
    finding = caught.value.finding
    again = run_program(target_of(SplitLosesLock), finding.program).finding

    assert len(finding.program.ops) <= 8
    assert finding.program.config["page_size"] == 2
    assert again is not None
    assert (again.rule, again.fact, again.step_idx) == (finding.rule, finding.fact, finding.step_idx)
    assert str(caught.value).startswith("ref_count_counts_handles: A node's ref_count is")


def test_a_page_given_away_behind_a_clean_view_is_found() -> None:
    """A view that is as it was is judged again when other pages are free. (invariants.md)"""
    runner = make_runner("cache", OracleCache, SMALL)
    assert runner.apply(INSERT) is None
    runner.free_pages.append(0)  # type: ignore[attr-defined]

    finding = runner.apply(REFUSED)

    assert finding is not None
    assert finding.rules == ("pages_partitioned",)


def test_a_slot_written_behind_a_clean_view_is_found() -> None:
    """A view that is as it was is judged again when something was written. (invariants.md)"""
    runner = make_runner("cache", OracleCache, SMALL, judges=("content",))
    assert runner.apply(INSERT) is None
    runner.free_pages = [0]  # type: ignore[attr-defined]
    assert runner.apply(REFUSED) is None

    finding = runner.apply({"op": "insert", "ids": [7], "handle": None, "drop_slots": 1})

    assert finding is not None
    assert finding.rules == ("slots_hold_their_tokens",)


def test_a_judge_can_be_switched_off() -> None:
    """Without structure and ownership the lost lock is seen in what the cache answers. (invariants.md)"""
    summary = fuzz(
        target_of(SplitLosesLock),
        "cache",
        seed=1,
        examples=300,
        config=RADIX,
        judges=["content"],
        shrink=False,
    )

    (finding,) = summary.findings
    assert finding.rule in ("sizes_add_up", "evict_frees_enough")
