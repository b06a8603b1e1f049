"""Each of deviations 1 to 8, undone: the fuzzer finds it, under the name that deviations.md declares.

An undo goes back to what upstream does, in a copy of the engine whose own checks are off, and runs
under the fuzzer's defaults. Not shrunk here: shrinking keeps the rule, and takes longer than finding it.
Guide: tests/README.md
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minisgl_conformance.cli import DEFAULT_EXAMPLES
from minisgl_conformance.fuzz import fuzz
from minisgl_ref.zoo.deviations import UNDOS
from minisgl_ref.zoo.fault import load

DEVIATIONS = (Path(__file__).resolve().parents[2] / "spec" / "deviations.md").read_text(encoding="utf-8")
SEEDS = (1, 2, 3, 4, 5)


def declared_rule(number: int) -> str:
    """The rule that a section of deviations.md declares."""
    section = re.split(r"^## ", DEVIATIONS, flags=re.MULTILINE)[number]
    (rule,) = re.findall(r"^Rule: `(\w+)`$", section, flags=re.MULTILINE)
    return str(rule)


@pytest.mark.parametrize("number", UNDOS)
def test_an_undo_declares_the_rule_of_its_deviation(number: int) -> None:
    """The zoo and the page name the same rule. (deviations.md)"""
    assert UNDOS[number].rule == declared_rule(number)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("number", UNDOS)
def test_the_judges_find_an_undone_deviation(number: int, seed: int) -> None:
    """On every seed, and by the declared rule. (deviations.md)"""
    engine = load(UNDOS[number])

    summary = fuzz(engine.make_engine_target, "engine", seed=seed, examples=DEFAULT_EXAMPLES, shrink=False)

    assert [finding.rule for finding in summary.findings] == [declared_rule(number)]


@pytest.mark.slow
@pytest.mark.parametrize("number", UNDOS)
def test_a_finding_is_shrunk_to_a_few_operations_that_show_the_same_rule(number: int) -> None:
    """As `minisgl-ref fuzz` would print it. (deviations.md)"""
    engine = load(UNDOS[number])

    summary = fuzz(engine.make_engine_target, "engine", seed=1, examples=DEFAULT_EXAMPLES)

    (finding,) = summary.findings
    assert finding.rule == declared_rule(number)
    assert len(finding.program.ops) <= 12
