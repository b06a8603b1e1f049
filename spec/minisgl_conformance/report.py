"""Reports: a finding as one page of text that a person can read without the fuzzer.

The rule and its sentence; what was permitted, and what was seen; the program with the guilty step
marked, and the one that noticed; the drawing before and after the guilty step; the biography of the
page or row it went wrong on.

Nothing here judges or runs anything.
Chapter: spec/README.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from minisgl_conformance.rules import sentence_of
from minisgl_conformance.runner import Finding
from minisgl_spec.trace import Json

MAX_LINES = 40
MAX_WIDTH = 160
_SHARES = {"program": 11, "before": 6, "after": 6, "biography": 6, "facts": 4, "error": 3}
"""Lines that a part may take at most when all of them are long."""

_PERMITTED = ("; permitted ", "; expected ", ", expected ", "; the oracle has ", "; counted ", "; cached ")
"""What stands in a fact between what was seen and what was permitted."""


def report(finding: Finding) -> str:
    """Return a finding as text of at most MAX_LINES lines."""
    program = _program_lines(finding)
    seen, permitted = _split(finding.fact)
    lines = [
        f"{finding.rule}: {sentence_of(finding.rule)}",
        _cut(f"  seen: {seen}"),
        *([_cut(f"  permitted: {permitted}")] if permitted else []),
        *_part("also", [f"  {v}" for v in finding.violations[1:]], _SHARES["facts"], from_end=False),
        *_config_lines(finding),
        *_keep(program, _SHARES["program"], from_end=True),
        *_blame_line(finding),
        *_part("before", finding.before.splitlines(), _SHARES["before"], from_end=False),
        *_part("after", finding.after.splitlines(), _SHARES["after"], from_end=False),
    ]
    if finding.biography:
        lives = [f"  {line}" for line in finding.biography]
        lines += _part(f"biography of {finding.subject}", lives, _SHARES["biography"], from_end=True)
    if finding.error is not None:
        lines += _part("exception", finding.error.splitlines(), _SHARES["error"], from_end=True)
    return "\n".join(lines[:MAX_LINES])


def describe_op(op: Json) -> str:
    """Return an operation as one line."""
    words = [op["op"]]
    for name, value in op.items():
        if name == "op" or value is None or (name == "progress" and not value):
            continue
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(f"{name}={text}" if not isinstance(value, list) else f"{name}=[{text}]")
    return " ".join(words)


def _program_lines(finding: Finding) -> list[str]:
    """One line per step, `>` at the guilty one and `!` at the one that noticed; equal steps are one line."""
    ops = [describe_op(op) for op in finding.program.ops[: finding.step_idx + 1]]
    ops += ["step (left alone, to come to rest)"] * (finding.step_idx + 1 - len(ops))
    lines: list[str] = []
    start = 0
    while start < len(ops):
        end = start + 1
        while (
            end < len(ops)
            and ops[end] == ops[start]
            and not _mark(finding, start)
            and not _mark(finding, end)
        ):
            end += 1
        times = f" ({end - start} times)" if end - start > 1 else ""
        lines.append(_cut(f"{_mark(finding, start) or ' '} {start:>3} {ops[start]}{times}"))
        start = end
    return lines


def _mark(finding: Finding, idx: int) -> str:
    if idx == finding.blame_idx:
        return ">"
    return "!" if idx == finding.step_idx else ""


def _blame_line(finding: Finding) -> list[str]:
    """Say which step is to blame if it is not the one that noticed."""
    if finding.blame_idx in (-1, finding.step_idx):
        return []
    noticed = f"step {finding.step_idx} noticed"
    return [_cut(f"blame: step {finding.blame_idx} ({finding.why}); {noticed}")]


def _split(fact: str) -> tuple[str, str]:
    """Take apart what was seen and what was permitted; where the fact does not say, the rule does."""
    for words in _PERMITTED:
        seen, found, permitted = fact.partition(words)
        if found:
            return seen, permitted
    return fact, ""


def _config_lines(finding: Finding) -> list[str]:
    """Return the configuration, on two lines if it has to be."""
    words = [f"{name}={value}" for name, value in finding.program.config.items()]
    text = " ".join(words)
    return textwrap.wrap(f"program, level {finding.program.level}: {text}", MAX_WIDTH, subsequent_indent="  ")


def _part(title: str, lines: Sequence[str], share: int, from_end: bool) -> list[str]:
    kept = _keep([_cut(line) for line in lines], share, from_end)
    return [f"{title}:", *kept] if kept else []


def _keep(lines: Sequence[str], share: int, from_end: bool) -> list[str]:
    """Keep a part within its share, and say how much is left out."""
    if len(lines) <= share:
        return list(lines)
    left_out = f"  ... {len(lines) - share + 1} lines left out"
    kept = share - 1
    return [left_out, *lines[-kept:]] if from_end else [*lines[:kept], left_out]


def _cut(line: str) -> str:
    return line if len(line) <= MAX_WIDTH else line[: MAX_WIDTH - 4] + " ..."
