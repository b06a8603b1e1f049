"""Hunting for tests: the swarm's programs, one after the other, until enough of them break a rule.

Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minisgl_conformance import swarm
from minisgl_conformance.adapters.ours import make_faulty
from minisgl_conformance.runner import Finding
from minisgl_ref.zoo.fault import Fault

Hunt = Callable[..., list[Finding]]

STREAMS = ("inline", "simulated")


@pytest.fixture
def hunt() -> Hunt:
    """What the first programs of a seed find in an engine with a change of source."""

    def findings(fault: Fault, level: str, seed: int, programs: int, most: int = 1) -> list[Finding]:
        make_target = make_faulty(fault, level)
        found: list[Finding] = []
        for number in range(programs):
            finding = swarm.run_program_of(make_target, level, seed, number, streams=STREAMS).finding
            found += [] if finding is None else [finding]
            if len(found) == most:
                break
        return found

    return findings
