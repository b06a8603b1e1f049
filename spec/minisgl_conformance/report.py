"""Reports: a finding as one page of text that a person can read without the fuzzer.

The rule and its sentence, the program with the guilty step marked, the drawing before and after it,
and every fact: what was permitted, and what was seen.

Nothing here judges or runs anything.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Sequence

from minisgl_conformance.rules import sentence_of
from minisgl_conformance.runner import Finding
from minisgl_spec.trace import Json

MAX_LINES = 40
MAX_WIDTH = 160
_SHARES = {"program": 14, "before": 6, "after": 6, "facts": 6, "error": 3}
"""Lines that a part may take at most when all of them are long."""


def report(finding: Finding) -> str:
    """Return a finding as text of at most MAX_LINES lines."""
    program = _program_lines(finding)
    lines = [
        f"{finding.rule}: {sentence_of(finding.rule)}",
        _cut(f"  seen: {finding.fact}"),
        *_part("also", [f"  {v}" for v in finding.violations[1:]], _SHARES["facts"], from_end=False),
        _cut(f"program, level {finding.program.level}: {_config_text(finding.program.config)}"),
        *_keep(program, _SHARES["program"], from_end=True),
        *_part("before", finding.before.splitlines(), _SHARES["before"], from_end=False),
        *_part("after", finding.after.splitlines(), _SHARES["after"], from_end=False),
    ]
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
    """One line per step, the guilty one marked; a run of equal steps before it is one line."""
    ops = [describe_op(op) for op in finding.program.ops[: finding.step_idx + 1]]
    lines: list[str] = []
    start = 0
    while start < len(ops) - 1:
        end = start + 1
        while end < len(ops) - 1 and ops[end] == ops[start]:
            end += 1
        times = f" ({end - start} times)" if end - start > 1 else ""
        lines.append(_cut(f"  {start:>3} {ops[start]}{times}"))
        start = end
    return [*lines, *(_cut(f"> {start:>3} {op}") for op in ops[-1:])]


def _config_text(config: Json) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


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
