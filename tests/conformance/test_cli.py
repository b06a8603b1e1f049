"""The command: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broken_caches import CountsPagesAsSlots, target_of
from typer.testing import CliRunner, Result

from minisgl_conformance import cli, files
from minisgl_conformance import fuzz as fuzzing
from minisgl_conformance.adapters.oracle import OracleCache
from minisgl_kernels import backends
from minisgl_spec.trace import Log

TRACES = Path(__file__).resolve().parents[1] / "traces"

HEADER = (
    '{"kind":"program","format_version":1,"package_version":"0.1.0","level":"cache",'
    '"config":{"page_size":2,"num_pages":4}}\n'
)


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli.app, list(arguments))


def run_json(*arguments: str) -> Any:
    """Run the command and read what it prints."""
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def wrong_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `--target ours --level cache` be a cache that counts pages as slots."""
    monkeypatch.setitem(cli.TARGETS, ("ours", "cache"), target_of(CountsPagesAsSlots))


@pytest.mark.parametrize(
    "arguments", [["--help"], ["fuzz", "--help"], ["replay", "--help"], ["bench", "--help"]]
)
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    """Help is there without the engine and without waiting for it. (spec/README.md)"""
    code = (
        "import sys\n"
        "from minisgl_conformance import cli\n"
        "try:\n"
        f"    cli.app({arguments!r})\n"
        "except SystemExit as end:\n"
        "    print('torch' in sys.modules, 'minisgl_ref' in sys.modules, end.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "False False 0"


def test_fuzz_prints_a_summary() -> None:
    """Programs, operations, marks, what is not claimed, the hash and the findings. (spec/README.md)"""
    done = run("fuzz", "--target", "oracle", "--level", "cache", "--examples", "3", "--seed", "1")
    words = (
        "target oracle, seed 1",
        "programs: 3",
        "judged steps:",
        "marks reached:",
        "not claimed: nothing",
    )

    assert done.exit_code == 0
    assert [word for word in (*words, "log hash:", "findings: 0") if word not in done.stdout] == []


def test_fuzz_takes_every_level() -> None:
    """Without --level all are run. (spec/README.md)"""
    told = run_json("fuzz", "--target", "oracle", "--examples", "2", "--seed", "1")

    ran = [(level["level"], level["programs"]) for level in told["levels"]]
    assert ran == [("cache", 2), ("manager", 2), ("engine", 2)]


def test_a_seed_is_drawn_and_printed() -> None:
    """A run without a seed can be repeated all the same. (spec/README.md)"""
    arguments = ("fuzz", "--target", "oracle", "--level", "cache", "--examples", "1")
    first, second = (run_json(*arguments)["levels"][0]["seed"] for _ in range(2))

    assert first != second


@pytest.mark.usefixtures("wrong_target")
def test_a_finding_is_reported_written_and_replayed(tmp_path: Path) -> None:
    """Exit code 1, a report, and a program that breaks the same rule again. (spec/README.md)"""
    out = str(tmp_path / "findings")
    done = run("fuzz", "--level", "cache", "--examples", "60", "--seed", "1", "--out", out)
    path = tmp_path / "findings" / "sizes_match_locks-1.jsonl"
    again = run("replay", str(path))

    assert (done.exit_code, again.exit_code) == (1, 1)
    assert "sizes_match_locks: evictable_size and protected_size are the slots" in done.stdout
    assert again.stdout.startswith("sizes_match_locks: evictable_size and protected_size are the slots")


def test_replay_of_a_right_program_finds_nothing_and_writes_its_log(tmp_path: Path) -> None:
    """A recorded program runs again; its log is the one that was recorded. (spec/README.md)"""
    recorded, log = tmp_path / "recorded", tmp_path / "again.jsonl"
    run(
        "fuzz",
        "--target",
        "oracle",
        "--level",
        "cache",
        "--examples",
        "2",
        "--seed",
        "1",
        "--record",
        str(recorded),
    )
    program = recorded / "cache-000002.program.jsonl"
    done = run("replay", str(program), "--target", "oracle", "--record", str(log))

    assert (done.exit_code, done.stdout.startswith("no finding in ")) == (0, True)
    assert files.read_log(log) == files.read_log(recorded / "cache-000002.log.jsonl")


def test_an_interrupted_run_prints_its_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a run, not its account of itself. (spec/README.md)"""

    class Interrupted(OracleCache):
        def evict(self, size: int) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(cli.TARGETS, ("oracle", "cache"), Interrupted)
    done = run("fuzz", "--target", "oracle", "--level", "cache", "--seed", "1")

    assert done.exit_code == 130
    assert "interrupted: the summary so far" in done.stdout
    assert "log hash:" in done.stdout


def test_an_interrupt_while_a_finding_is_reduced_writes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C loses no finding: exit code 1, a report and a file. (spec/README.md)"""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.TARGETS, ("oracle", "cache"), target_of(CountsPagesAsSlots))
    monkeypatch.setattr(fuzzing, "reduce", interrupt)
    arguments = ("--examples", "60", "--seed", "1", "--out", str(tmp_path))
    done = run("fuzz", "--target", "oracle", "--level", "cache", *arguments)

    assert done.exit_code == 1
    assert "interrupted: the summary so far" in done.stdout
    assert "sizes_match_locks: evictable_size" in done.stdout
    assert files.read_program(tmp_path / "sizes_match_locks-1.jsonl").level == "cache"


@pytest.mark.usefixtures("wrong_target")
def test_a_report_is_printed_though_its_file_cannot_be_written(tmp_path: Path) -> None:
    """A full disk costs the file, not the finding. (spec/README.md)"""
    (tmp_path / "out").write_text("no folder", encoding="utf-8")
    arguments = ("--examples", "60", "--seed", "1", "--out", str(tmp_path / "out"))
    done = run("fuzz", "--level", "cache", *arguments)

    assert done.exit_code == 2
    assert "sizes_match_locks: evictable_size" in done.stdout


def test_an_exception_that_nobody_expected_has_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its traceback, so that it is not taken for a finding. (spec/README.md)"""

    def break_down(config: object) -> object:
        raise RuntimeError("broken down")

    monkeypatch.setitem(cli.TARGETS, ("oracle", "cache"), break_down)
    monkeypatch.setattr(sys, "argv", ["minisgl-ref", "fuzz", "--target", "oracle", "--level", "cache"])
    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert ended.value.code == 3
    assert capsys.readouterr().err.splitlines()[-1] == "RuntimeError: broken down"


def test_generate_records_what_the_engine_was_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that serves is a program and a log, and the log is what replay has to give. (spec/README.md)"""
    import minisgl_ref
    from minisgl_ref.build import choose_backend
    from minisgl_ref.models.digest import DigestModel

    def load(path: str, config: minisgl_ref.EngineConfig) -> Any:
        model = DigestModel(16, (3,), 32, choose_backend("torch"))
        llm = from_model(model, None, replace(config, max_seq_len=32))
        generate = llm.generate
        llm.generate = lambda texts, params: generate(
            [[int(n) for n in text.split()] for text in texts], params
        )
        return llm

    from_model = minisgl_ref.LLM.from_model
    monkeypatch.setattr(minisgl_ref, "LLM", load)
    measures = ("--max-tokens", "4", "--page-size", "2", "--num-pages", "16")
    done = run("generate", "model", "1 2 4 5", "1 2 4 5 6", *measures, "--record", str(tmp_path))
    program, log = (tmp_path / f"generate.{kind}.jsonl" for kind in ("program", "log"))
    again = run("replay", str(program), "--expect", str(log))

    assert (done.exit_code, again.exit_code) == (0, 0)
    assert [op["op"] for op in files.read_program(program).ops][:3] == ["submit", "submit", "step"]


def test_replay_names_the_first_event_that_is_not_as_expected(tmp_path: Path) -> None:
    """A recorded log is what the program has to give again. (spec/README.md)"""
    program, log = (TRACES / f"split_and_evict.{kind}.jsonl" for kind in ("program", "log"))
    same = run("replay", str(program), "--target", "oracle", "--expect", str(log))
    recorded = files.read_log(log)
    events = [*recorded.events[:2], {**recorded.events[2], "sizes": [9, 9]}, *recorded.events[3:]]
    files.write_log(tmp_path / "other.jsonl", Log(recorded.level, recorded.config, events))
    files.write_log(tmp_path / "short.jsonl", Log(recorded.level, recorded.config, events[:2]))
    other, short = (
        run("replay", str(program), "--target", "oracle", "--expect", str(tmp_path / name))
        for name in ("other.jsonl", "short.jsonl")
    )

    sizes, name = recorded.events[2]["sizes"], recorded.events[2]["event"]
    assert same.exit_code == 0
    assert (other.exit_code, short.exit_code) == (1, 1)
    assert other.stdout.splitlines()[-1] == f"event 2 ({name}), sizes: {sizes}; expected [9, 9]"
    assert short.stdout.splitlines()[-1].startswith("event 2: {")
    assert short.stdout.splitlines()[-1].endswith("; expected no event")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "need a header line"),
        (HEADER + "{\n", "line=2"),
        (HEADER.replace(":1,", ":7,"), "format_version=7"),
        (HEADER + '{"op":"evict","size":"all"}\n', "'all' is not of type 'integer'"),
        (HEADER + '{"op":"unlock","handle":1}\n', "got handle=1, handles=0, step=1"),
    ],
)
def test_a_malformed_program_file_is_a_usage_error(tmp_path: Path, text: str, message: str) -> None:
    """The message shows the value; the exit code is 2. (spec/README.md)"""
    path = tmp_path / "program.jsonl"
    path.write_text(text, encoding="utf-8")
    done = run("replay", str(path), "--target", "oracle")

    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["fuzz", "--examples", "0"],
        ["fuzz", "--minutes", "0"],
        ["fuzz", "--level", "device"],
        ["fuzz", "--target", "theirs"],
        ["replay", "no-such-file.jsonl"],
        ["nothing"],
    ],
)
def test_a_usage_error_has_exit_code_2(arguments: list[str]) -> None:
    """What was typed wrong is told apart from a finding. (spec/README.md)"""
    assert run(*arguments).exit_code == 2


def test_our_engine_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the engine exits with 2 and the command that installs it. (spec/README.md)"""

    def without_torch(config: object) -> object:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setitem(cli.TARGETS, ("ours", "engine"), without_torch)
    done = run("fuzz", "--level", "engine", "--examples", "1")

    assert done.exit_code == 2
    assert "judged steps" not in done.stdout
    assert "no module torch. Install it with: pip install 'minisgl-ref[engine]'" in done.stderr


def test_without_the_engine_nothing_is_run_before_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache could run without torch; both levels cannot. (spec/README.md)"""
    monkeypatch.setitem(sys.modules, "minisgl_ref.testing", None)
    done = run("fuzz", "--examples", "1")

    assert done.exit_code == 2
    assert "our engine is not installed" in done.stderr
    assert "judged steps" not in done.stdout


def test_targets_says_what_is_available_and_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every target and backend is listed; an absent one with its reason. (spec/README.md)"""

    def without_numpy() -> str | None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(cli, "_why_no_engine", without_numpy)
    told = {entry["name"]: entry["unavailable"] for entry in run_json("targets")}

    assert list(told) == ["oracle", "ours", "torch", "c", "triton", "cuda"]
    assert told["oracle"] is None
    assert told["ours"] == "no module numpy: pip install 'minisgl-ref[engine]'"


def test_bugs_lists_the_zoo() -> None:
    """Each deliberate bug with its rule and what is wrong. (README.md#the-command)"""
    result = run("bugs", "--json")

    listed = {entry["name"]: entry for entry in json.loads(result.stdout)}
    assert result.exit_code == 0
    assert len(listed) >= 100
    assert listed["release_in_flight"]["rule"] == "in_flight_requests_are_held"


def test_bugs_hunts_one_and_shows_its_report() -> None:
    """The change, the report, and the figures. (README.md#the-command)"""
    result = run("bugs", "release_in_flight", "--quick")

    assert result.exit_code == 0
    assert "\nin_flight_requests_are_held: " in result.stdout
    assert "found: 1 of 1" in result.output


def test_bugs_hunts_a_sample_and_prints_the_table() -> None:
    """One row per bug, then the figures of all. (README.md#the-command)"""
    result = run("bugs", "--sample", "3", "--quick", "--seed", "2")

    rows = [line for line in result.stdout.splitlines() if line.startswith("| ")]
    assert result.exit_code == 0
    assert len(rows) == 3 + 2
    assert "found: 3 of 3" in result.stdout.splitlines()


def test_an_unknown_bug_is_a_usage_error() -> None:
    """By its name. (README.md#the-command)"""
    result = run("bugs", "no_such_bug")

    assert result.exit_code == 2
    assert "no_such_bug" in result.output


def test_targets_gives_each_backends_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a backend says why it cannot run is what is printed, word for word. (kernels/README.md)"""
    reasons = {"torch": None, "c": "install it[engine]", "triton": "no interpreter", "cuda": "no CUDA device"}
    monkeypatch.setattr(backends, "why_not", reasons.get)

    told = {
        entry["name"]: entry["unavailable"] for entry in run_json("targets") if entry["kind"] == "kernels"
    }
    printed = run("targets").stdout

    assert told == reasons
    assert all(f"no: {reason}" in printed for reason in reasons.values() if reason is not None)
