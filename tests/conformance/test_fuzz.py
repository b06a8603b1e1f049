"""The driver: the same seed does the same, budgets are kept, marks are reached, an interrupt is survived."""

from __future__ import annotations

import pytest

from minisgl_conformance.adapters.managers import OracleManager
from minisgl_conformance.adapters.oracle import OracleCache, OracleEngine
from minisgl_conformance.fuzz import Summary, fuzz
from minisgl_conformance.marks import MARKS, Marks
from minisgl_conformance.runner import Result

TIMES = ("seconds", "operations_per_second", "judged_steps_per_second")
MAKE = {"cache": OracleCache, "manager": OracleManager, "engine": OracleEngine}


def timeless(summary: Summary) -> dict[str, object]:
    """Return a summary without what a clock measured."""
    return {name: value for name, value in summary.to_json().items() if name not in TIMES}


@pytest.mark.parametrize("level", MAKE)
def test_the_same_seed_runs_the_same_programs(level: str) -> None:
    """Two runs of one seed agree in everything but times, logs included. (spec/README.md)"""
    first, second = (fuzz(MAKE[level], level, seed=11, examples=12) for _ in range(2))

    assert timeless(first) == timeless(second)


def test_another_seed_runs_other_programs() -> None:
    """The hash over all logs tells runs apart. (spec/README.md)"""
    assert fuzz(OracleCache, "cache", seed=1, examples=5).log_hash != (
        fuzz(OracleCache, "cache", seed=2, examples=5).log_hash
    )


def test_a_budget_of_examples_is_exact() -> None:
    """As many programs are run as were asked for, over several batches. (spec/README.md)"""
    told: list[int] = []
    summary = fuzz(
        OracleCache, "cache", seed=1, examples=53, watch=lambda summary, _: told.append(summary.num_programs)
    )

    assert told == list(range(1, 54))
    assert summary.num_programs == 53


def test_a_budget_of_time_ends_a_run() -> None:
    """A run ends with the batch in which its time is over. (spec/README.md)"""
    summary = fuzz(OracleCache, "cache", seed=1, seconds=0.01)

    assert summary.num_programs == 50


def test_an_interrupt_leaves_the_summary_so_far() -> None:
    """What ran before the interrupt is counted. (spec/README.md)"""

    def interrupt(summary: Summary, result: Result) -> None:
        if summary.num_programs == 3:
            raise KeyboardInterrupt

    summary = fuzz(OracleCache, "cache", seed=1, examples=10, watch=interrupt)

    assert (summary.num_programs, summary.interrupted) == (3, True)


def test_every_mark_has_a_sentence() -> None:
    """A mark says what it stands for, in one sentence. (spec/README.md)"""
    marks = [mark for level in MARKS.values() for mark in level.values()]

    assert len(marks) >= 100
    assert [mark.name for mark in marks if not mark.sentence.endswith(".")] == []


def test_a_mark_that_is_not_listed_cannot_be_counted() -> None:
    """A mark is listed before it is counted, so that its absence is noticed. (spec/README.md)"""
    with pytest.raises(KeyError, match="never_heard_of"):
        Marks("cache").sometimes("never_heard_of", True)


@pytest.mark.slow
@pytest.mark.parametrize("level", MAKE)
def test_a_default_run_reaches_every_mark(level: str) -> None:
    """The default budget stands three times or more at every edge there is. (spec/README.md)"""
    summary = fuzz(MAKE[level], level, seed=1, examples=300)

    assert {name: count for name in MARKS[level] if (count := summary.marks[name]) < 3} == {}
    assert summary.num_judged_steps >= 10_000
