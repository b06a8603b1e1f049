"""Claims about programs and logs as JSON lines.

Guide: spec/README.md
"""

from __future__ import annotations

import json
import math

import pytest

from minisgl_spec.errors import ContractError
from minisgl_spec.trace import (
    PACKAGE_VERSION,
    SCHEMA_PATH,
    Log,
    Program,
    dump_line,
    dump_log,
    dump_program,
    encode_float,
    hash_events,
    load_log,
    load_program,
)

PROGRAM = Program(
    "cache",
    {"page_size": 2, "num_pages": 4, "cache": "radix"},
    [{"op": "insert", "ids": [1, 2], "handle": None}, {"op": "evict", "size": 2}],
    {"seed": 7},
)
HEADER = '{"kind":"program","format_version":1,"package_version":"0.1.0","level":"cache","config":{}}\n'


def test_a_program_comes_back_as_it_was_written() -> None:
    """Writing and reading is no change. (spec/README.md)"""
    assert load_program(dump_program(PROGRAM)) == PROGRAM


def test_a_log_comes_back_as_it_was_written() -> None:
    """Writing and reading is no change. (spec/README.md)"""
    log = Log("engine", {"page_size": 1}, [{"event": "step", "inner": [], "free_pages": 3}])

    assert load_log(dump_log(log)) == log


def test_the_first_line_says_what_the_file_is() -> None:
    """Kind, versions, level and configuration. (spec/README.md)"""
    header = json.loads(dump_program(PROGRAM).splitlines()[0])

    assert header == {
        "kind": "program",
        "format_version": 1,
        "package_version": PACKAGE_VERSION,
        "level": "cache",
        "config": PROGRAM.config,
        "origin": {"seed": 7},
    }


def test_empty_lines_mean_nothing() -> None:
    """A file that was edited by hand still reads. (spec/README.md)"""
    assert load_program("\n" + HEADER + '\n{"op":"reset"}\n\n').ops == [{"op": "reset"}]


def test_a_line_is_canonical() -> None:
    """Sorted keys, no spaces: equal events are equal lines. (spec/README.md)"""
    assert dump_line({"b": 1, "a": [1, 2]}) == '{"a":[1,2],"b":1}'


def test_a_hash_depends_on_events_and_their_order() -> None:
    """Two runs agree when their hashes do. (spec/README.md)"""
    events: list[dict[str, object]] = [{"event": "match", "handle": 0}, {"event": "evict", "slots": []}]

    assert hash_events(events) == hash_events([dict(event) for event in events])
    assert hash_events(events) != hash_events(events[::-1])


@pytest.mark.parametrize(
    ("value", "encoded"), [(0.5, 0.5), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")]
)
def test_a_number_that_json_lacks_is_written_by_name(value: float, encoded: float | str) -> None:
    """Bad temperatures can be part of a program. (spec/README.md)"""
    assert encode_float(value) == encoded


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "load_program: need a header line"),
        (HEADER.replace('"format_version":1', '"format_version":99'), "format_version=99"),
        (HEADER.replace("cache", "device"), "need a header with kind=program, a level of"),
        (dump_log(Log("cache", {}, [])), "need a header with kind=program"),
        (HEADER + "{not json\n", "line=2, found='{not json'"),
        (HEADER + "[1]\n", "need one JSON object per line"),
        (HEADER + '{"event":"match"}\n', 'need a line with "op"'),
    ],
)
def test_what_is_no_program_is_refused_with_its_line(text: str, message: str) -> None:
    """The message names the file, the line and what is wrong. (spec/README.md)"""
    with pytest.raises(ContractError) as refused:
        load_program(text, "a.jsonl")

    assert message in str(refused.value)
    assert refused.value.got["source"] == "a.jsonl"


def test_the_schema_is_beside_the_module() -> None:
    """What is well formed is said in JSON Schema. (spec/README.md)"""
    assert json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))["$schema"].startswith(
        "https://json-schema.org/"
    )
