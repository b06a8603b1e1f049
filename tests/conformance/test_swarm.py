"""The swarm: a seed repeats its programs, alone or shared among processes, and every mark is reached."""

from __future__ import annotations

import pytest
from broken_caches import EvictsLocked, target_of
from broken_engines import EndsEarly

from minisgl_conformance import run_program
from minisgl_conformance.adapters.managers import OracleManager
from minisgl_conformance.adapters.oracle import OracleCache, OracleEngine
from minisgl_conformance.fuzz import BOTH, HYPOTHESIS, fuzz
from minisgl_conformance.marks import MARKS
from minisgl_conformance.swarm import NAME, run_program_of
from minisgl_spec.errors import ContractError

MAKE = {"cache": OracleCache, "manager": OracleManager, "engine": OracleEngine}
TIMES = ("seconds", "operations_per_second", "judged_steps_per_second")


@pytest.mark.parametrize("level", MAKE)
def test_a_program_depends_on_seed_and_number_alone(level: str) -> None:
    """Program 7 is the same whether 0 to 6 ran before it or not. (spec/README.md)"""
    programs = []
    fuzz(MAKE[level], level, seed=3, examples=8, driver=NAME, watch=lambda _, result: programs.append(result))

    alone = run_program_of(MAKE[level], level, 3, 7, streams=("inline", "simulated"))

    assert (alone.program, alone.log) == (programs[7].program, programs[7].log)
    assert alone.program.origin == {"driver": "swarm", "seed": 3, "number": 7}


def test_processes_that_share_a_run_see_what_one_sees() -> None:
    """The summary of two workers is the summary of one. (spec/README.md)"""
    one, two = (
        fuzz(OracleCache, "cache", seed=5, examples=120, driver=NAME, workers=workers) for workers in (1, 2)
    )

    timeless = [
        {name: value for name, value in summary.to_json().items() if name not in TIMES}
        for summary in (one, two)
    ]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize("level", MAKE)
def test_a_few_hundred_programs_reach_every_mark(level: str) -> None:
    """No situation worth reaching is left out; the counts are printed. (spec/README.md)"""
    summary = fuzz(MAKE[level], level, seed=1, examples=400, driver=NAME)

    assert summary.missing == ()
    assert list(summary.to_json()["marks"]) == list(MARKS[level])


def test_both_drivers_share_a_budget() -> None:
    """A tenth of the programs is Hypothesis', the rest the swarm's. (spec/README.md)"""
    drivers = []
    fuzz(
        OracleCache,
        "cache",
        seed=1,
        examples=21,
        driver=BOTH,
        watch=lambda _, result: drivers.append(result.program.origin["driver"]),
    )

    assert drivers == [HYPOTHESIS] * 3 + [NAME] * 18


def test_an_unknown_driver_is_refused() -> None:
    """By its name. (spec/README.md)"""
    with pytest.raises(ContractError, match="got driver='luck'"):
        fuzz(OracleCache, "cache", seed=1, examples=1, driver="luck")


def test_a_finding_of_the_swarm_is_reduced_and_repeats() -> None:
    """Its program breaks the same rule again. (spec/README.md)"""
    make = target_of(EvictsLocked)
    (found,) = fuzz(make, "cache", seed=1, examples=200, driver=NAME).findings
    again = run_program(make, found.program).finding

    assert found.rule == "evict_frees_enough"
    assert len(found.program.ops) <= 4
    assert again == found


def test_a_finding_while_an_engine_comes_to_rest_needs_no_steps_of_the_program() -> None:
    """What the runner does after the program is not a part of it. (spec/README.md)"""
    (found,) = fuzz(EndsEarly, "engine", seed=1, examples=200, driver=NAME).findings

    assert [op["op"] for op in found.program.ops] == ["submit"]
    assert found.step_idx >= 1
    assert run_program(EndsEarly, found.program).finding == found
