"""Reports: a finding on one page."""

from __future__ import annotations

from broken_caches import EvictsLocked, target_of
from broken_engines import RaisesOnEviction

from minisgl_conformance import report, run_program
from minisgl_conformance.fuzz import fuzz
from minisgl_spec.trace import Program


def test_a_report_shows_the_rule_the_program_and_both_drawings() -> None:
    """The rule and its sentence, the guilty step, the tree before and after, every fact. (spec/README.md)"""
    ops = [
        {"op": "insert", "ids": [1, 2, 3, 4], "handle": None},
        {"op": "lock", "handle": 0},
        {"op": "evict", "size": 0},
        {"op": "evict", "size": 0},
        {"op": "match", "ids": [1, 2]},
        {"op": "insert", "ids": [5, 6], "handle": None},
        {"op": "evict", "size": 2},
    ]
    program = Program("cache", {"page_size": 2, "num_pages": 4, "cache": "radix"}, ops)
    finding = run_program(target_of(EvictsLocked), program).finding

    assert finding is not None
    assert report(finding).splitlines() == [
        "evict_frees_enough: evict(size) returns at least size slots, all from nodes with ref_count 0.",
        "  seen: evict(2) returned slots [2, 3], which a locked handle protects",
        "also:",
        "  ref_count_counts_handles: node 0 has ref_count=1, 0 locked handles at or below",
        "  ref_count_counts_handles: node 2 has ref_count=1, 0 locked handles at or below",
        "  locked_nodes_in_tree: a locked handle of 4 tokens names node 1, which is not in the tree",
        "program, level cache: page_size=2 num_pages=4 cache=radix",
        "    0 insert ids=[1 2 3 4]",
        "    1 lock handle=0",
        "    2 evict size=0 (2 times)",
        "    4 match ids=[1 2]",
        "    5 insert ids=[5 6]",
        ">   6 evict size=2",
        "before:",
        "root",
        "  [1 2] slots=0-1 ref_count=1",
        "    [3 4] slots=2-3 ref_count=1",
        "  [5 6] slots=4-5 ref_count=0",
        "evictable=2 protected=4",
        "after:",
        "root",
        "  [1 2] slots=0-1 ref_count=1",
        "  [5 6] slots=4-5 ref_count=0",
        "locked handle of 4 tokens on node 1, which is gone",
        "evictable=2 protected=2",
        "biography of page 1:",
        "  step 0: cached by node 1, ref_count=0",
        "  step 1: locked, now cached by node 1, ref_count=1",
        "  step 6: evicted, now not cached",
    ]


def test_a_report_has_at_most_forty_lines() -> None:
    """However long the program, a report fits a page, and shows the exception. (spec/README.md)"""
    finding = fuzz(RaisesOnEviction, "engine", seed=1, examples=100, shrink=False).findings[0]
    lines = report(finding).splitlines()

    assert len(lines) <= 40
    assert lines[0] == "steps_complete: No sequence of accepted operations stops the engine."
    assert lines[-1] == "RuntimeError: Cannot evict"
    assert max(map(len, lines)) <= 160
