"""Reproductions: a script of the target alone that fails the same way each time, and a test to keep.

Guide: tests/README.md
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minisgl_conformance import bugs
from minisgl_conformance.adapters import zoo
from minisgl_conformance.repro import repro_script, repro_test, write_reproductions
from minisgl_conformance.runner import Finding

FAULTS = ("abort_as_decode_finishes", "release_in_flight", "lock_skips_its_own_node")
INSERTS = ("partly_matched_node_keeps_its_tick",)
"""The last operation is an insert, whose answer holds a handle."""


def found(name: str) -> tuple[zoo.Faulty, Finding]:
    hunted = bugs.hunt(name, seed=1, only_find=True)
    assert hunted.finding is not None
    return zoo.Faulty(name, hunted.level), hunted.finding


def run(path: Path, *arguments: str, seed: int = 0) -> tuple[int, str]:
    env = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, *arguments, str(path)], capture_output=True, text=True, env=env)
    return done.returncode, done.stderr + done.stdout


@pytest.mark.parametrize("name", FAULTS + INSERTS)
def test_a_script_fails_the_same_way_each_time(name: str, tmp_path: Path) -> None:
    """It imports the target, makes the calls and names the rule. (spec/README.md)"""
    make_target, finding = found(name)
    script, _ = write_reproductions(make_target, finding, tmp_path)

    runs = {run(script, seed=seed) for seed in (1, 2)}

    assert len(script.read_text(encoding="utf-8").splitlines()) <= 30
    ((code, said),) = runs
    assert code == 1
    assert said.splitlines()[-1].startswith(f"AssertionError: {finding.rule}: ")


def test_a_test_to_keep_fails_until_the_target_is_right() -> None:
    """It fails on the faulty engine, and passes on the right one. (spec/README.md)"""
    make_target, finding = found(FAULTS[0])
    text = repro_test(make_target, finding)
    faulty: dict[str, object] = {}
    exec(compile(text, "test_faulty.py", "exec"), faulty)
    right = {**faulty, "make_target": zoo.make_right("engine")}
    exec(text[text.index("def test_") :], right)

    with pytest.raises(AssertionError, match=finding.rule):
        faulty[f"test_{finding.rule}"]()  # type: ignore[operator]
    assert right[f"test_{finding.rule}"]() is None  # type: ignore[operator]


def test_a_script_is_the_same_each_time() -> None:
    """Byte for byte. (spec/README.md)"""
    make_target, finding = found(FAULTS[1])

    assert repro_script(make_target, finding) == repro_script(make_target, finding)


REPORTS = """
from minisgl_conformance import bugs
from minisgl_conformance.report import report
for name in {names!r}:
    print(report(bugs.hunt(name, seed=1, only_find=True).finding))
"""


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_seed_gives_the_same_reports_byte_for_byte(tmp_path: Path, count: int) -> None:
    """Whatever Python's hashes are. (spec/README.md)"""
    script = tmp_path / "reports.py"
    script.write_text(REPORTS.format(names=FAULTS), encoding="utf-8")

    runs = {run(script, seed=seed) for seed in range(1, count + 1)}

    ((code, said),) = runs
    assert code == 0
    assert said.count("program, level") == len(FAULTS)
