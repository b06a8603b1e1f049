"""The driver: the same seed does the same, budgets are kept, marks are reached, an interrupt is survived."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minisgl_conformance import fuzz as fuzzing
from minisgl_conformance import run_conformance
from minisgl_conformance.adapters.managers import OracleManager
from minisgl_conformance.adapters.oracle import OracleCache, OracleEngine
from minisgl_conformance.fuzz import Summary, fuzz
from minisgl_conformance.marks import MARKS, Marks
from minisgl_conformance.runner import Result
from minisgl_spec.errors import ContractError
from minisgl_spec.trace import Json

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
    """A run ends with the program in which its time is over, and is not interrupted. (spec/README.md)"""
    summary = fuzz(OracleCache, "cache", seed=1, seconds=0)

    assert (summary.num_programs, summary.interrupted) == (1, False)


def test_an_interrupt_leaves_the_summary_so_far() -> None:
    """What ran before the interrupt is counted. (spec/README.md)"""

    def interrupt(summary: Summary, result: Result) -> None:
        if summary.num_programs == 3:
            raise KeyboardInterrupt

    summary = fuzz(OracleCache, "cache", seed=1, examples=10, watch=interrupt)

    assert (summary.num_programs, summary.interrupted) == (3, True)


class TellsTooLittle(OracleCache):
    """Eviction tells a slot too few."""

    def evict(self, size: int) -> Sequence[int]:
        """Tell all but one."""
        return super().evict(size)[1:]


def test_an_interrupt_while_a_finding_is_reduced_keeps_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is told as it was found. (spec/README.md)"""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzzing, "reduce", interrupt)
    summary = fuzz(TellsTooLittle, "cache", seed=1, examples=60)

    assert (len(summary.findings), summary.interrupted) == (1, True)
    assert summary.findings[0].blame_idx >= 0


def test_an_interrupt_while_the_target_is_made_leaves_a_summary() -> None:
    """Nothing has run, and that is what it says. (spec/README.md)"""

    def interrupted(config: object) -> object:
        raise KeyboardInterrupt

    summary = fuzz(interrupted, "cache", seed=1, examples=60)

    assert (summary.num_programs, summary.interrupted) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"judges": ["structre"]}, "got judge='structre'"),
        ({"judges": "structure"}, "got judges='structure'"),
        ({"examples": 0}, "need examples >= 1; got examples=0"),
        ({"level": "pages"}, "got level='pages'"),
    ],
)
def test_what_would_judge_less_than_was_asked_for_is_refused(arguments: Json, message: str) -> None:
    """A misspelt judge is no judge that finds nothing. (spec/README.md)"""
    with pytest.raises(ContractError, match=message):
        run_conformance(OracleCache, **{"level": "cache", **arguments})


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


def test_the_swarm_gets_its_half_of_the_time() -> None:
    """Hypothesis' share ends, and the swarm's begins. (fuzz.py)"""
    drivers: list[str] = []

    def watch(summary: Summary, result: Result | None) -> None:
        if result is not None:
            drivers.append(str(result.program.origin["driver"]))

    fuzz(OracleCache, "cache", seed=1, seconds=0.4, watch=watch, driver="both")

    assert set(drivers) == {"hypothesis", "swarm"}
