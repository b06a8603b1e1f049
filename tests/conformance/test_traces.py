"""Recorded runs: the programs of tests/traces give the logs beside them, on the oracle and on our engine.

A log changes when a rule does. Write it anew with
`minisgl-ref replay tests/traces/NAME.program.jsonl --target oracle --record tests/traces/NAME.log.jsonl`,
and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minisgl_conformance import cli, files, run_program
from minisgl_spec.trace import dump_log

TRACES = Path(__file__).resolve().parents[1] / "traces"
NAMES = sorted(path.name.removesuffix(".program.jsonl") for path in TRACES.glob("*.program.jsonl"))


def test_there_are_traces_of_both_levels() -> None:
    """A run of each level is kept, as the schema has it. (spec/README.md)"""
    levels = {files.read_log(TRACES / f"{name}.log.jsonl").level for name in NAMES}

    assert levels == {"cache", "engine"}


@pytest.mark.parametrize("target", ["oracle", "ours"])
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_program_gives_its_log(name: str, target: str) -> None:
    """The same program has the same log, event by event. (spec/README.md)"""
    program = files.read_program(TRACES / f"{name}.program.jsonl")
    result = run_program(cli.TARGETS[target, program.level], program)

    assert result.finding is None
    assert dump_log(result.log) == (TRACES / f"{name}.log.jsonl").read_text(encoding="utf-8")
