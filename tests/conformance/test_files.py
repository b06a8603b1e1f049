"""Program and log files: what is written reads back, and what is wrong is refused with line and value."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisgl_conformance import files, run_program
from minisgl_conformance.adapters.managers import OracleManager
from minisgl_conformance.adapters.oracle import OracleCache, OracleEngine
from minisgl_conformance.fuzz import fuzz
from minisgl_conformance.runner import Result
from minisgl_spec.errors import ContractError
from minisgl_spec.trace import Program

CACHE_HEADER = (
    '{"kind":"program","format_version":1,"package_version":"0.1.0","level":"cache",'
    '"config":{"page_size":2,"num_pages":4}}'
)
MAKE = {"cache": OracleCache, "manager": OracleManager, "engine": OracleEngine}


def refusal_of(tmp_path: Path, text: str) -> ContractError:
    """Return how a program file with this text is refused."""
    path = tmp_path / "program.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ContractError) as caught:
        files.read_program(path)
    return caught.value


def test_the_schema_is_a_schema() -> None:
    """trace.schema.json is well formed, and has every operation and inner event. (spec/README.md)"""
    schema = files._schema()
    names = {name.rpartition(".")[2] for name in files.definitions() if ".op." in name}
    inner = {name.removeprefix("inner.") for name in files.definitions() if name.startswith("inner.")}

    assert files.jsonschema.Draft202012Validator.check_schema(schema) is None
    cache, manager = {"match", "insert", "lock", "unlock", "evict"}, {"start", "extend", "commit", "finish"}
    assert names == cache | manager | {"reset", "submit", "abort", "step"}
    assert inner == {"admit", "refuse", "evict", "take", "launch", "process", "insert", "release", "reply"}


@pytest.mark.parametrize("level", MAKE)
def test_every_program_and_log_is_as_the_schema_has_it(level: str, tmp_path: Path) -> None:
    """What the fuzzer makes and records reads back as it was. (spec/README.md)"""
    results: list[Result] = []
    fuzz(MAKE[level], level, seed=5, examples=8, watch=lambda summary, result: results.append(result))
    read = []
    for idx, result in enumerate(results):
        files.write_program(tmp_path / f"{idx}.program.jsonl", result.program)
        files.write_log(tmp_path / f"{idx}.log.jsonl", result.log)
        program = files.read_program(tmp_path / f"{idx}.program.jsonl")
        log = files.read_log(tmp_path / f"{idx}.log.jsonl")
        read.append((program.config, list(program.ops), list(log.events)))

    assert read == [(r.program.config, list(r.program.ops), list(r.log.events)) for r in results]


def test_numbers_that_json_lacks_are_written_as_words(tmp_path: Path) -> None:
    """A temperature that is no number survives the file, and is refused by its name. (04-requests.md)"""
    config = {"page_size": 1, "num_pages": 4, "num_rows": 1, "max_seq_len": 8}
    config |= {"token_budget": 4, "overlap": False, "vocab_size": 6}
    op = {"op": "submit", "uid": 0, "ids": [1], "max_tokens": 1, "temperature": "nan"}
    files.write_program(tmp_path / "nan.jsonl", Program("engine", config, [op]))
    result = run_program(OracleEngine, files.read_program(tmp_path / "nan.jsonl"))

    assert result.log.events[0] == {
        "event": "submit",
        "uid": 0,
        "accepted": False,
        "reason": "bad_temperature",
        "value": "nan",
        "limit": 0,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "need a header line"),
        ("[1, 2]\n", "need one JSON object per line"),
        ("{no json\n", "line=1"),
        (CACHE_HEADER.replace('"format_version":1', '"format_version":9'), "format_version=9"),
        (CACHE_HEADER.replace("cache", "cachet"), "a header with kind=program"),
        (CACHE_HEADER.replace('"page_size":2', '"page_size":0'), "['config']['page_size']: 0 is less than"),
        (CACHE_HEADER + '\n{"op":"matches","ids":[1]}\n', "unknown op 'matches'"),
        (CACHE_HEADER + '\n\n{"op":"match","ids":[1,"two"]}\n', "line=3"),
        (CACHE_HEADER + '\n{"op":"match","ids":[1,"two"]}\n', "['ids'][1]: 'two' is not of type 'integer'"),
        (CACHE_HEADER + '\n{"op":"match"}\n', "'ids' is a required property"),
        (CACHE_HEADER + '\n{"op":"evict","size":1,"why":"x"}\n', "'why' was unexpected"),
    ],
)
def test_a_file_that_is_no_program_is_refused_with_the_value(tmp_path: Path, text: str, message: str) -> None:
    """The message shows the line and what is wrong with it. (spec/README.md)"""
    assert message in str(refusal_of(tmp_path, text))


def test_a_program_that_names_a_handle_nobody_made_is_refused() -> None:
    """A handle is the number of an earlier match or insertion. (spec/README.md)"""
    program = Program("cache", {"page_size": 1, "num_pages": 4}, [{"op": "lock", "handle": 3}])

    with pytest.raises(ContractError, match="got handle=3, handles=0, step=1"):
        run_program(OracleCache, program)
