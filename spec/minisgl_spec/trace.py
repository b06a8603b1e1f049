"""Programs and logs: the one vocabulary that fuzzers, oracles, targets and reports speak.

A program is the input side: a level, a configuration and a list of operations. A log is what a
target answered: one event per operation, and for a `step` (or an abort that releases) the ordered
inner events. Both are JSON lines; the first line is a header with `format_version` and the
package's version. An unknown version is refused by number.

Operations   cache:   match insert lock unlock evict reset
             manager: start extend commit finish abort
             engine:  submit abort step reset
Inner events admit refuse evict take launch process insert release reply

This file reads and writes; the JSON Schema beside it says what is well formed, `minisgl_conformance`
validates against it. Nothing here runs a program.
Chapter: spec/README.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minisgl_spec.errors import ContractError

FORMAT_VERSION = 1
PACKAGE_VERSION = "0.1.0"
LEVELS = ("cache", "manager", "engine")
SCHEMA_PATH = Path(__file__).with_name("trace.schema.json")

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)

Json = dict[str, Any]
"""One operation, event or header as it stands in a line."""


@dataclass(frozen=True)
class Program:
    """A configuration and the operations to run on it."""

    level: str
    config: Json
    ops: Sequence[Json]
    origin: Json = field(default_factory=dict)  # where it came from: seed, finding, ...


@dataclass(frozen=True)
class Log:
    """What a target answered: one event per operation of its program."""

    level: str
    config: Json
    events: Sequence[Json]


def dump_line(line: Mapping[str, Any]) -> str:
    """Return one canonical JSON line: sorted keys, no spaces, no NaN."""
    return _ENCODER.encode(line)


def dump_program(program: Program) -> str:
    """Return a program as JSON lines, a header first."""
    header = _header("program", program.level, program.config)
    if program.origin:
        header["origin"] = program.origin
    return "\n".join(dump_line(line) for line in (header, *program.ops)) + "\n"


def dump_log(log: Log) -> str:
    """Return a log as JSON lines, a header first."""
    header = _header("log", log.level, log.config)
    return "\n".join(dump_line(line) for line in (header, *log.events)) + "\n"


def load_program(text: str, source: str = "program") -> Program:
    """Read a program; refuse what is no program, with the line that is wrong.

    Raises: ContractError naming `source`, the line number and what is wrong with it.
    """
    header, lines = _load(text, source, "program", "op")
    return Program(header["level"], header["config"], lines, header.get("origin", {}))


def load_log(text: str, source: str = "log") -> Log:
    """Read a log; refuse what is no log, with the line that is wrong."""
    header, lines = _load(text, source, "log", "event")
    return Log(header["level"], header["config"], lines)


def hash_events(events: Iterable[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of the canonical lines of `events`, in hexadecimal."""
    lines = [dump_line(event) + "\n" for event in events]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def encode_float(value: float) -> float | str:
    """Return a number JSON can carry: NaN and infinities become their names."""
    return value if value - value == 0 else str(value)


def _header(kind: str, level: str, config: Json) -> Json:
    return {
        "kind": kind,
        "format_version": FORMAT_VERSION,
        "package_version": PACKAGE_VERSION,
        "level": level,
        "config": config,
    }


def _load(text: str, source: str, kind: str, word: str) -> tuple[Json, list[Json]]:
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ContractError(f"load_{kind}", "a header line", {"source": source, "text": repr(text[:40])})
    parsed = [_parse(number, line, source, kind) for number, line in lines]
    header = parsed[0]
    if header.get("format_version") != FORMAT_VERSION:
        raise ContractError(
            f"load_{kind}",
            f"format_version={FORMAT_VERSION}",
            {"source": source, "format_version": header.get("format_version")},
            "Read it with the release that wrote it, or write it again.",
        )
    if (
        header.get("kind") != kind
        or header.get("level") not in LEVELS
        or not isinstance(header.get("config"), dict)
    ):
        raise ContractError(
            f"load_{kind}",
            f"a header with kind={kind}, a level of {LEVELS} and a config",
            {"source": source, "header": header},
        )
    for (number, _), line in zip(lines[1:], parsed[1:], strict=True):
        if not isinstance(line.get(word), str):
            raise ContractError(
                f"load_{kind}", f'a line with "{word}"', {"source": source, "line": number, "found": line}
            )
    return header, parsed[1:]


def _parse(number: int, line: str, source: str, kind: str) -> Json:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ContractError(
            f"load_{kind}",
            "one JSON object per line",
            {"source": source, "line": number, "found": repr(line[:80])},
            str(error),
        ) from error
    if not isinstance(value, dict):
        raise ContractError(
            f"load_{kind}",
            "one JSON object per line",
            {"source": source, "line": number, "found": repr(line[:80])},
        )
    return value
