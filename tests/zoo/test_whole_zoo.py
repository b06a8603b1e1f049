"""The whole zoo: nothing is missed under ten seeds, and what is said of each bug is short, minimal and right.

Guide: tests/README.md
"""

from __future__ import annotations

from math import ceil
from statistics import median

import pytest

from minisgl_conformance import bugs
from minisgl_conformance.adapters import zoo
from minisgl_conformance.report import report
from minisgl_conformance.repro import repro_script
from minisgl_conformance.runner import run_program
from minisgl_ref.zoo import FAULTS
from minisgl_spec.errors import ContractError
from minisgl_spec.trace import Program

SEEDS = range(1, 11)

MOST_REPORT_LINES, MOST_REPRO_LINES = 40, 30

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fault_is_missed(seed: int) -> None:
    """All are found; findings are small, named as declared and blamed rightly. (zoo/fault.py)"""
    hunts = bugs.hunt_all(list(FAULTS), seed, only_find=True)

    lengths = sorted(hunted.length for hunted in hunts)
    assert [hunted.name for hunted in hunts if not hunted.found] == []
    assert median(lengths) <= 5
    assert lengths[ceil(0.95 * len(lengths)) - 1] <= 8
    assert lengths[-1] <= 12
    assert sum(hunted.is_named for hunted in hunts) >= 0.95 * len(hunts)
    assert sum(hunted.is_blamed for hunted in hunts) >= 0.9 * len(hunts)


@pytest.mark.parametrize("name", FAULTS)
def test_a_finding_is_minimal_and_fails_the_same_way_each_time(name: str) -> None:
    """No operation can be dropped; report and script keep to their size. (spec/README.md)"""
    hunted = bugs.hunt(name, seed=1, only_find=True)
    assert hunted.finding is not None
    make_target = zoo.Faulty(name, hunted.level)
    script = repro_script(make_target, hunted.finding)

    shorter = [_rule_of(make_target, program) for program in _one_less(hunted.finding.program)]
    kind, said = _failure(script)

    assert hunted.named not in shorter
    assert _failure(script) == (kind, said)
    assert hunted.finding.error is not None or (kind, said.startswith(f"{hunted.named}: ")) == (
        AssertionError,
        True,
    )
    assert len(report(hunted.finding).splitlines()) <= MOST_REPORT_LINES
    assert hunted.length > 8 or len(script.splitlines()) <= MOST_REPRO_LINES


def _one_less(program: Program) -> list[Program]:
    """Return the program without each of its operations in turn."""
    ops = list(program.ops)
    return [
        Program(program.level, program.config, ops[:idx] + ops[idx + 1 :], program.origin)
        for idx in range(len(ops))
    ]


def _rule_of(make_target: zoo.Faulty, program: Program) -> str | None:
    """Return the rule a program breaks, or None; a program may need what has been dropped."""
    try:
        finding = run_program(make_target, program).finding
    except ContractError:
        return None
    return None if finding is None else finding.rule


def _failure(script: str) -> tuple[type[BaseException], str]:
    """Run a script; it must fail, by itself or because the target raises."""
    with pytest.raises(Exception) as failed:
        exec(compile(script, "repro.py", "exec"), {"__name__": "__main__"})
    return failed.type, str(failed.value)
