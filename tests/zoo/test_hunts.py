"""Hunts: what a deliberate bug's finding says, measured on the undone deviations.

Guide: tests/README.md
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minisgl_conformance import bugs
from minisgl_conformance.adapters import zoo
from minisgl_conformance.report import report
from minisgl_conformance.runner import run_program
from minisgl_ref.zoo.deviations import UNDOS
from minisgl_spec.errors import ContractError
from minisgl_spec.trace import Program

REPORT = Path(__file__).with_name("report_no_row_rewrite.txt")
NAMES = {number: fault.name for number, fault in UNDOS.items()}


@pytest.mark.parametrize("number", NAMES)
def test_an_undone_deviation_is_found_named_blamed_and_small(number: int) -> None:
    """Within seconds, by its declared rule, at the step that did it, in a few operations. (deviations.md)"""
    hunted = bugs.hunt(NAMES[number], seed=1, only_find=True)

    assert hunted.found
    assert (hunted.named, hunted.blame) == (hunted.rule, hunted.truth)
    assert hunted.length <= 5


@pytest.mark.parametrize("number", [1, 4, 6])
def test_no_operation_of_a_reduced_program_can_be_dropped(number: int) -> None:
    """Without any one of them the rule holds, or another one fails first. (spec/README.md)"""
    finding = bugs.hunt(NAMES[number], seed=2, only_find=True).finding
    assert finding is not None
    make_target = zoo.Faulty(NAMES[number], "engine")
    ops = list(finding.program.ops)

    shorter = [
        run_program(
            make_target, Program("engine", finding.program.config, ops[:idx] + ops[idx + 1 :])
        ).finding
        for idx in range(len(ops))
    ]

    assert [found.rule for found in shorter if found is not None and found.rule == finding.rule] == []


def test_a_report_has_the_biography_of_the_guilty_page() -> None:
    """Who took it, who cached it, who had it next, by step; and all on one page. (spec/README.md)"""
    finding = bugs.hunt(NAMES[1], seed=1, only_find=True).finding
    assert finding is not None
    lines = report(finding).splitlines()

    assert len(lines) <= 40
    assert f"biography of {finding.subject}:" in lines
    assert any("taken by request" in line for line in lines)


def test_the_report_that_the_chapter_shows_is_what_is_printed() -> None:
    """Word for word; the file is written anew from what this prints. (fuzzing.md#a-finding)"""
    finding = bugs.hunt(NAMES[1], seed=1, only_find=True).finding

    assert finding is not None
    assert report(finding).rstrip() == REPORT.read_text(encoding="utf-8").rstrip()


def test_a_judge_alone_sees_or_does_not_see() -> None:
    """Structure alone does not see that a freed page is still named; the other two do. (deviations.md)"""
    hunted = bugs.hunt(NAMES[1], seed=1)

    assert hunted.judges == ("ownership", "content")
    assert hunted.share is not None
    assert 0 < hunted.share < 1


def test_the_table_sums_up() -> None:
    """One line per fault, and the figures of all. (spec/README.md)"""
    hunts = bugs.hunt_all([NAMES[4], NAMES[7]], seed=1, only_find=True)
    lines = bugs.table(hunts).splitlines()

    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| reply_after_the_end", "| row_width_of_32"]
    assert "found: 2 of 2" in lines


def test_an_unknown_fault_is_refused() -> None:
    """By its name. (spec/README.md)"""
    with pytest.raises(ContractError, match="got name='no_such_bug'"):
        bugs.hunt("no_such_bug", seed=1)
