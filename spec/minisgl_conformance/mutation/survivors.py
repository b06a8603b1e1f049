"""Survivors: why a mutant that the suite does not notice is no fault, or not the suite's business.

`survivors.json` has one entry each: the mutant's key, a verdict and a sentence. An equivalent mutant does
what the engine does, and the sentence is the proof; one that is out of scope does something else, and the
sentence says what, and why the suite does not judge it. The score leaves the equivalent ones out.

Nothing here runs a mutant.
Guide: tests/README.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from minisgl_conformance.mutation.judge import Verdict
from minisgl_conformance.mutation.mutants import Key, Mutant

FILE = Path(__file__).with_name("survivors.json")

EQUIVALENT, OUT_OF_SCOPE = "equivalent", "out of scope"
VERDICTS = (EQUIVALENT, OUT_OF_SCOPE)

LEAST = 0.95
"""The score that the suite must reach."""


@dataclass(frozen=True)
class Reason:
    """Why a mutant survives: one of `VERDICTS`, and a sentence."""

    verdict: str
    sentence: str


def load_reasons(file: Path = FILE) -> dict[Key, Reason]:
    """Return the reasons that are written down."""
    return {
        Key(entry["module"], entry["function"], entry["line"], entry["to"], entry["nth"]): Reason(
            entry["verdict"], entry["sentence"]
        )
        for entry in json.loads(file.read_text(encoding="utf-8"))
    }


@dataclass
class Score:
    """What became of some mutants, and what of it is explained."""

    verdicts: Mapping[Mutant, Verdict]
    reasons: Mapping[Key, Reason]

    @property
    def survivors(self) -> list[Key]:
        """The mutants that nobody noticed, in the order of their keys."""
        return sorted(mutant.key for mutant, verdict in self.verdicts.items() if not verdict.killed_by)

    @property
    def stale(self) -> list[Key]:
        """The mutants that were killed though a reason says why they survive."""
        return sorted(
            mutant.key
            for mutant, verdict in self.verdicts.items()
            if verdict.killed_by and mutant.key in self.reasons
        )

    @property
    def killed(self) -> int:
        """How many were noticed."""
        return len(self.verdicts) - len(self.survivors)

    @property
    def equivalent(self) -> int:
        """How many are no change at all."""
        return len(self.of(EQUIVALENT))

    @property
    def score(self) -> float:
        """The share of killed ones among those that are not equivalent."""
        return self.killed / max(1, len(self.verdicts) - self.equivalent)

    @property
    def is_good(self) -> bool:
        """Whether the suite notices enough, and no reason is out of date."""
        return self.score >= LEAST and not self.stale

    def of(self, verdict: str) -> list[Key]:
        """Return the survivors with this verdict; with the empty one, those without a reason."""
        return [
            key
            for key in self.survivors
            if (self.reasons[key].verdict if key in self.reasons else "") == verdict
        ]

    def lines(self) -> list[str]:
        """Return the survivors with their reasons, and the figures."""
        lines = []
        for verdict in VERDICTS:
            lines += [f"{verdict}: {key}\n    {self.reasons[key].sentence}" for key in self.of(verdict)]
        lines += [f"no reason: {key}" for key in self.of("")]
        lines += [f"killed, so its reason is out of date: {key}" for key in self.stale]
        num = len(self.verdicts)
        figures = {
            "killed": self.killed,
            f"equivalent ({self.equivalent / max(1, num):.1%})": self.equivalent,
            OUT_OF_SCOPE: len(self.of(OUT_OF_SCOPE)),
            "without a reason": len(self.of("")),
        }
        return [
            *lines,
            f"{num} mutants: " + ", ".join(f"{count} {name}" for name, count in figures.items()),
            f"score: {self.score:.1%} of those that are not equivalent; at least {LEAST:.0%} is asked for",
        ]


def draft(keys: Sequence[Key]) -> str:
    """Return entries for survivors without a reason, to be filled in."""
    names = ("module", "function", "line", "to", "nth")
    entries = [dict(zip(names, astuple(key), strict=True)) | {"verdict": "", "sentence": ""} for key in keys]
    return json.dumps(entries, indent=1, ensure_ascii=False)
