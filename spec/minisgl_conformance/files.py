"""Program and log files: read, validated against the schema, written.

`minisgl_spec.trace` knows the form of a file, `trace.schema.json` the form of each line; a file that
is wrong is refused with the line, the value and what is wrong with it.

Nothing here runs a program.
Chapter: spec/README.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jsonschema

from minisgl_spec.errors import ContractError
from minisgl_spec.trace import (
    SCHEMA_PATH,
    Json,
    Log,
    Program,
    dump_line,
    dump_log,
    dump_program,
    load_log,
    load_program,
)


def read_program(path: Path) -> Program:
    """Read a program file.

    Raises: ContractError naming file, line and value; OSError if the file cannot be read.
    """
    text = _read(path)
    program = load_program(text, str(path))
    _check_lines("load_program", path, text, program.level, "op")
    return program


def read_log(path: Path) -> Log:
    """Read a log file.

    Raises: ContractError naming file, line and value; OSError if the file cannot be read.
    """
    text = _read(path)
    log = load_log(text, str(path))
    _check_lines("load_log", path, text, log.level, "event")
    return log


def write_program(path: Path, program: Program) -> None:
    """Write a program file, and the folder it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_program(program), encoding="utf-8")


def write_log(path: Path, log: Log) -> None:
    """Write a log file, and the folder it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_log(log), encoding="utf-8")


def check_line(line: Json, name: str) -> str | None:
    """Return what is wrong with a line that ought to be as the schema's definition `name`, or None."""
    error = jsonschema.exceptions.best_match(_validator(name).iter_errors(line))
    if error is None:
        return None
    where = "".join(f"[{part!r}]" for part in error.absolute_path)
    return f"{where or 'the line'}: {error.message}"


def definitions() -> Sequence[str]:
    """Return the names of the schema's definitions."""
    return tuple(_schema()["$defs"])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ContractError("read", "a text file in UTF-8", {"source": str(path)}, str(error)) from error


def _check_lines(operation: str, path: Path, text: str, level: str, word: str) -> None:
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for idx, (number, line) in enumerate(numbered):
        value = json.loads(line)
        name = f"{value['kind']}.header" if idx == 0 else f"{level}.{word}.{value[word]}"
        if name not in _schema()["$defs"]:
            known = [
                known.rpartition(".")[2] for known in definitions() if known.startswith(f"{level}.{word}.")
            ]
            wrong: str | None = f"unknown {word} {value[word]!r}; level {level} has {', '.join(known)}"
        else:
            wrong = check_line(value, name)
        if wrong is not None:
            raise ContractError(
                operation,
                f"a line as {SCHEMA_PATH.name} has it",
                {"source": path, "line": number, "found": value},
                wrong,
            )


@cache
def _schema() -> Json:
    schema: Json = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    return schema


@cache
def _validator(name: str) -> Any:
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _schema()["$defs"]})


def first_difference(log: Log, expected: Log) -> str | None:
    """Return where a log leaves the one that was expected, event by event, or None."""
    if log.level != expected.level:
        return f"level: {log.level}; expected {expected.level}"
    for name in sorted({*log.config, *expected.config}):
        one, other = (which.config.get(name, "nothing") for which in (log, expected))
        if one != other:
            return f"config, {name}: {one}; expected {other}"
    for idx, (event, wanted) in enumerate(zip_longest(log.events, expected.events)):
        if event is None or wanted is None:
            lines = [dump_line(which) if which is not None else "no event" for which in (event, wanted)]
            return f"event {idx}: {lines[0]}; expected {lines[1]}"
        for name in sorted({*event, *wanted}):
            if event.get(name) != wanted.get(name):
                return (
                    f"event {idx} ({wanted['event']}), {name}: {event.get(name)}; expected {wanted.get(name)}"
                )
    return None
