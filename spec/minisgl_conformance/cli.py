"""The command `minisgl-ref`: fuzz, replay, bugs, generate, bench and targets.

Exit codes: 0 nothing found, 1 a finding, 2 a usage error, a file that is no program, or an engine
that is not installed, 3 an exception that nobody expected, with its traceback, 130 Ctrl-C. What needs
torch imports it when it runs, so that `--help` does not.

Nothing here decides or judges.
Chapter: spec/README.md
"""

from __future__ import annotations

import json
import os
import random
import secrets
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from minisgl_conformance import files, targets
from minisgl_conformance.adapters import managers, oracle, ours
from minisgl_conformance.files import first_difference
from minisgl_conformance.fuzz import Summary, Watch
from minisgl_conformance.fuzz import fuzz as run_fuzz
from minisgl_conformance.marks import MARKS
from minisgl_conformance.report import report
from minisgl_conformance.repro import write_reproductions
from minisgl_conformance.runner import Result, run_program
from minisgl_conformance.targets import MakeTarget
from minisgl_spec.errors import BackendUnavailable, ContractError
from minisgl_spec.trace import Log

FINDING, USAGE, CRASH, INTERRUPTED = 1, 2, 3, 130
"""Exit codes."""

INSTALL = "pip install 'minisgl-ref[engine]'"
ENGINE_MODULES = {"torch", "transformers", "accelerate", "gguf", "cffi", "numpy", "safetensors", "triton"}
DEFAULT_EXAMPLES = 300
BENCH_RUNS = 5

app = typer.Typer(
    name="minisgl-ref",
    help="An executable definition of prefix caching, and the fuzzer that holds engines to it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class TargetName(StrEnum):
    """Whom to run."""

    OURS = "ours"
    ORACLE = "oracle"


class LevelName(StrEnum):
    """Which operations to run."""

    CACHE = "cache"
    MANAGER = "manager"
    ENGINE = "engine"
    ALL = "all"


class DriverName(StrEnum):
    """Who draws the programs."""

    SWARM = "swarm"
    HYPOTHESIS = "hypothesis"
    BOTH = "both"


class ModelName(StrEnum):
    """What computes the tokens."""

    DIGEST = "digest"
    TINY_LLAMA = "tiny-llama"


TARGETS: dict[tuple[str, str], MakeTarget] = {
    ("oracle", targets.CACHE): oracle.OracleCache,
    ("oracle", targets.MANAGER): managers.OracleManager,
    ("oracle", targets.ENGINE): oracle.OracleEngine,
    ("ours", targets.CACHE): ours.OurCache,
    ("ours", targets.MANAGER): managers.OurManager,
    ("ours", targets.ENGINE): ours.make_engine,
}


def main() -> None:
    """Run the command."""
    # OpenMP threads that spin while they wait slow everything down on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except Exception:
        traceback.print_exc()
        sys.exit(CRASH)


@app.command()
def fuzz(
    target: Annotated[TargetName, typer.Option(help="Whom to run.")] = TargetName.OURS,
    level: Annotated[LevelName, typer.Option(help="Which operations to run.")] = LevelName.ALL,
    examples: Annotated[int | None, typer.Option(min=1, help="Run so many programs per level.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Run so long, all levels together.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Which programs; drawn if left out.")] = None,
    model: Annotated[ModelName, typer.Option(help="What computes the tokens.")] = ModelName.DIGEST,
    driver: Annotated[DriverName, typer.Option(help="Who draws the programs.")] = DriverName.BOTH,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the swarm's programs.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    record: Annotated[Path | None, typer.Option(help="Write programs and logs to this folder.")] = None,
    out: Annotated[Path, typer.Option(help="Write findings to this folder.")] = Path("findings"),
) -> None:
    """Run random programs against a target, judged after every step; exit 1 on a finding."""
    if minutes is not None and minutes <= 0:
        raise typer.BadParameter(f"need more than 0; got {minutes}", param_hint="--minutes")
    if record is not None and workers > 1:
        raise typer.BadParameter(f"need --workers 1 to record; got {workers}", param_hint="--record")
    seed = secrets.randbelow(2**31) if seed is None else seed
    levels = targets.LEVELS if level is LevelName.ALL else (level.value,)
    if examples is None and minutes is None:
        examples = DEFAULT_EXAMPLES
    console = Console(stderr=True) if as_json else Console()
    console.print(f"target {target.value}, seed {seed}", highlight=False)
    summaries = []
    with _explained():
        if target is TargetName.OURS and targets.ENGINE in levels:
            import minisgl_ref.testing  # noqa: F401  # what is missing is told before anything runs
        for name in levels:
            seconds = None if minutes is None else minutes * 60 / len(levels)
            fixed = {"model": model.value} if name == targets.ENGINE else {}
            with _watched(console, name, examples, record) as watch:
                summary = run_fuzz(
                    TARGETS[target.value, name],
                    name,
                    seed=seed,
                    examples=examples,
                    seconds=seconds,
                    config=fixed,
                    watch=watch,
                    driver=driver.value,
                    workers=workers,
                )
            summaries.append(summary)
            _tell(console, summary, as_json)
            _write_findings(console, summary, out, TARGETS[target.value, name])
            if summary.findings or summary.interrupted:
                break
    if as_json:
        print(json.dumps({"target": target.value, "levels": [s.to_json() for s in summaries]}, indent=2))
    if any(summary.findings for summary in summaries):
        raise typer.Exit(FINDING)
    if any(summary.interrupted for summary in summaries):
        raise typer.Exit(INTERRUPTED)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A program, as JSON lines.")],
    target: Annotated[TargetName, typer.Option(help="Whom to run.")] = TargetName.OURS,
    record: Annotated[Path | None, typer.Option(help="Write the log to this file.")] = None,
    expect: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A log that the run has to repeat.")
    ] = None,
) -> None:
    """Run a program file; exit 1 with the report of its finding, or where its log is not the expected one."""
    with _explained():
        program = files.read_program(file)
        expected = files.read_log(expect) if expect is not None else None
        result = run_program(TARGETS[target.value, program.level], program)
        if record is not None:
            files.write_log(record, result.log)
    if result.finding is not None:
        print(report(result.finding))
        raise typer.Exit(FINDING)
    print(f"no finding in {result.num_operations} operations")
    if expected is not None:
        # Steps that let the target come to rest are the runner's own; a recorded run need not have them.
        length = max(len(program.ops), len(expected.events))
        log = Log(result.log.level, result.log.config, result.log.events[:length])
        difference = first_difference(log, expected)
        if difference is not None:
            print(difference)
            raise typer.Exit(FINDING)
        print(f"the log is the one in {expect}")


@app.command()
def bugs(
    name: Annotated[str | None, typer.Argument(help="The fault to hunt; all are listed if left out.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Hunt all of them and print the table.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Which programs.")] = 1,
    sample: Annotated[int | None, typer.Option(min=1, help="Hunt so many, drawn by the seed.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the faults.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out shares and judges.")] = False,
    write: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the deliberate bugs of the zoo, or hunt them; exit 1 if one is not found."""
    with _explained():
        from minisgl_conformance import bugs as zoo_bugs
        from minisgl_conformance.adapters.zoo import fault_of, faults

        if name is not None:
            hunts = [zoo_bugs.hunt(fault_of(name).name, seed, only_find=quick)]
        elif every or sample is not None:
            names = list(faults())
            if sample is not None:
                names = sorted(random.Random(seed).sample(names, min(sample, len(names))))
            hunts = zoo_bugs.hunt_all(names, seed, workers, only_find=quick, watch=_tell_hunt)
        else:
            _list_faults(faults(), as_json)
            return
    if as_json:
        print(json.dumps([hunted.to_json() for hunted in hunts], indent=2))
    elif name is not None:
        fault = fault_of(name)
        print(f"{fault.name}: {fault.sentence}\n{fault.change}\n")
        print(report(hunts[0].finding) if hunts[0].finding is not None else "not found")
        print("\n".join(zoo_bugs.summary_lines(hunts)), file=sys.stderr)
    else:
        print(zoo_bugs.table(hunts), end="")
    if write is not None:
        write.write_text(zoo_bugs.table(hunts), encoding="utf-8")
    if not all(hunted.found for hunted in hunts):
        raise typer.Exit(FINDING)


def _tell_hunt(hunted: Any) -> None:
    """Say at once what a hunt gave; the table comes when all are done."""
    how = f"{hunted.named}, {hunted.operations} operations, {hunted.seconds:.2f} s, length {hunted.length}"
    print(f"{hunted.name}: {how if hunted.found else 'not found'}", file=sys.stderr, flush=True)


def _list_faults(faults: dict[str, Any], as_json: bool) -> None:
    if as_json:
        keys = ("name", "level", "rule", "undoes", "sentence")
        print(json.dumps([{key: getattr(fault, key) for key in keys} for fault in faults.values()], indent=2))
        return
    table = Table("fault", "rule", "undoes", "what is wrong")
    for fault in faults.values():
        table.add_row(fault.name, fault.rule, fault.undoes, fault.sentence)
    Console().print(table)


@app.command()
def generate(
    model_path: Annotated[Path, typer.Argument(help="A folder of a model, or a GGUF file.")],
    prompts: Annotated[list[str], typer.Argument(help="Texts to continue.")],
    max_tokens: Annotated[int, typer.Option(help="The most tokens per prompt.")] = 32,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Tokens kept; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Probability kept.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    page_size: Annotated[int, typer.Option(help="Slots per page.")] = 16,
    num_pages: Annotated[int, typer.Option(help="Pages of the KV pool.")] = 512,
    record: Annotated[
        Path | None, typer.Option(help="Write the run's program and log to this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
) -> None:
    """Generate text with our engine and a real model."""
    with _explained():
        from minisgl_ref import LLM, EngineConfig, SamplingParams

        llm = LLM(str(model_path), EngineConfig(page_size=page_size, num_pages=num_pages))
        params = SamplingParams(
            max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
        )
        with _recorded(llm, record):
            outputs = llm.generate(prompts, params)
        for prompt, output in zip(prompts, outputs, strict=True):
            _print_output(prompt, output, as_json)
    refusals = [
        f"prompt {prompt!r} was refused: {output.refusal}"
        for prompt, output in zip(prompts, outputs, strict=True)
        if output.refusal is not None
    ]
    if refusals:
        _fail("\n".join(refusals))


@contextmanager
def _recorded(llm: Any, folder: Path | None) -> Iterator[None]:
    """Write what an engine was asked and answered, also if it failed; nothing without a folder."""
    if folder is None:
        yield
        return
    recording = llm.record()
    try:
        yield
    finally:
        files.write_program(folder / "generate.program.jsonl", recording.program())
        files.write_log(folder / "generate.log.jsonl", recording.log())


@app.command()
def bench(
    examples: Annotated[int, typer.Option(min=1, help="Programs per run of the throughput.")] = 100,
    requests: Annotated[int, typer.Option(min=0, help="Requests to serve; 0 leaves serving out.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure fuzzing throughput, the engine's cache (also on a production trace), kernels and serving."""
    console = Console(stderr=True) if as_json else Console()

    def tell(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    with _explained():
        from minisgl_ref.bench import one_thread, run

        figures: dict[str, object] = {}
        with one_thread():
            figures["fuzz"] = [
                _throughput(tell, level, examples, driver)
                for driver in (DriverName.HYPOTHESIS, DriverName.SWARM)
                for level in targets.LEVELS
            ]
        figures |= run(tell, num_requests=requests)
    if as_json:
        print(json.dumps(figures, indent=2))


def _throughput(
    tell: Callable[[str], None], level: str, examples: int, driver: DriverName
) -> dict[str, object]:
    """Tell what driver, engine and judges do a second: Hypothesis with FULL checks, the swarm with none.

    The median of runs of other seeds, each of so many programs (Hypothesis shares them), and of the
    calibration loop before each.
    """
    from minisgl_conformance.adapters.zoo import make_right
    from minisgl_ref.bench.calibration import calibrate

    has_checks = driver is DriverName.HYPOTHESIS
    make_target = TARGETS["ours", level] if has_checks else make_right(level)
    run_fuzz(make_target, level, seed=1, examples=1, driver=driver.value)  # imports
    count = -(-examples // BENCH_RUNS) if has_checks else examples
    runs, calibrations = [], []
    for seed in range(1, 1 + BENCH_RUNS):
        calibrations.append(calibrate())
        began = process_time()
        summary = run_fuzz(make_target, level, seed=seed, examples=count, driver=driver.value)
        summary.seconds = process_time() - began  # of one thread that never waits: neighbours count little
        runs.append(summary)
    steps_per_second = median(run.judged_steps_per_second for run in runs)
    calibration_us = median(calibrations)
    word = "steps" if level == targets.ENGINE else "operations"
    checks = "FULL checks" if has_checks else "the engine's own checks off"
    tell(
        f"fuzz level {level}, {driver.value}: {steps_per_second:.0f} judged {word}/s, every judge on, "
        f"{checks}, one core; median of {BENCH_RUNS}, calibration loop: {calibration_us:.0f} us"
    )
    return {
        "level": level,
        "driver": driver.value,
        "programs": sum(run.num_programs for run in runs),
        "judged_steps": sum(run.num_judged_steps for run in runs),
        "judged_steps_per_second": round(steps_per_second, 1),
        "operations_per_second": round(median(run.operations_per_second for run in runs), 1),
        "calibration_us": round(calibration_us),
        "findings": sum(len(run.findings) for run in runs),
    }


@app.command("targets")
def list_targets(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the targets and kernel backends, and why one is not available."""
    rows = [(kind, name, _why_not(check)) for kind, name, check in _things()]
    if as_json:
        print(json.dumps([{"kind": k, "name": n, "unavailable": why} for k, n, why in rows], indent=2))
        return
    table = Table("kind", "name", "available")
    for kind, name, why in rows:
        table.add_row(kind, name, "yes" if why is None else escape(f"no: {why}"))
    Console().print(table)


# -- what the commands share -------------------------------------------------------------------


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what a person can mend into a message and exit code 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {*ENGINE_MODULES, "minisgl_ref", "minisgl_kernels"}:
            raise
        _fail(f"our engine is not installed: no module {error.name}. Install it with: {INSTALL}")
    except (ContractError, BackendUnavailable) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename}")


def _fail(message: str) -> None:
    print(f"minisgl-ref: {message}", file=sys.stderr)
    raise typer.Exit(USAGE)


@contextmanager
def _watched(console: Console, level: str, examples: int | None, record: Path | None) -> Iterator[Watch]:
    """Show progress while programs run, and write them if they are to be recorded."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(level, total=examples)

        def watch(summary: Summary, result: Result | None) -> None:
            text = f"{level}: {summary.num_programs} programs, {summary.num_judged_steps} judged steps"
            progress.update(task, completed=summary.num_programs, description=text)
            if record is not None and result is not None:
                name = f"{level}-{summary.num_programs:06}"
                files.write_program(record / f"{name}.program.jsonl", result.program)
                files.write_log(record / f"{name}.log.jsonl", result.log)

        yield watch


def _tell(console: Console, summary: Summary, as_json: bool) -> None:
    """Print a summary for people."""
    if summary.interrupted:
        console.print("interrupted: the summary so far", highlight=False)
    reached = len(summary.marks)
    missing = f"; never: {', '.join(summary.missing)}" if summary.missing else ""
    lines = [
        f"level {summary.level}, {summary.seconds:.1f} s",
        f"  programs: {summary.num_programs}",
        f"  operations: {summary.num_operations}, {summary.operations_per_second:.0f} a second",
        f"  judged steps: {summary.num_judged_steps}, {summary.judged_steps_per_second:.0f} a second",
        f"  marks reached: {reached} of {reached + len(summary.missing)}{missing}",
        *textwrap.wrap(f"  {_counts(summary)}", width=110, subsequent_indent="    "),
        f"  not claimed: {', '.join(summary.not_claimed) or 'nothing'}",
        f"  log hash: {summary.log_hash}",
        f"  findings: {len(summary.findings)}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _counts(summary: Summary) -> str:
    """Return how often each mark was reached."""
    return ", ".join(f"{name} {summary.marks[name]}" for name in MARKS[summary.level])


def _write_findings(console: Console, summary: Summary, out: Path, make_target: MakeTarget) -> None:
    """Print and write each finding, with a script that repeats it and a test to keep."""
    for finding in summary.findings:
        console.print(report(finding), highlight=False, markup=False, soft_wrap=True)
        path = out / f"{finding.rule}-{summary.seed}.jsonl"
        files.write_program(path, finding.program)
        console.print(
            f"written to {path}; repeat it with: minisgl-ref replay {path}", highlight=False, soft_wrap=True
        )
        script, test = write_reproductions(make_target, finding, out)
        console.print(
            f"without the fuzzer: python {script}; to keep: {test}", highlight=False, soft_wrap=True
        )


def _print_output(prompt: str, output: Any, as_json: bool) -> None:
    if as_json:
        line = {
            "prompt": prompt,
            "text": output.text,
            "output_ids": list(output.output_ids),
            "finish_reason": output.finish_reason,
            "cached_len": output.cached_len,
        }
        print(json.dumps(line, ensure_ascii=False))
        return
    print(f"{prompt}{output.text}")
    print(f"  ({len(output.output_ids)} tokens, {output.finish_reason}, cached_len={output.cached_len})")


def _things() -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """Name what can be there, each with a check that says why it is not."""
    from minisgl_kernels import backends

    yield "target", "oracle", lambda: None
    yield "target", "ours", _why_no_engine
    yield from (("kernels", name, lambda name=name: backends.why_not(name)) for name in backends.BACKENDS)


def _why_not(check: Callable[[], str | None]) -> str | None:
    try:
        return check()
    except ImportError as error:
        return f"no module {error.name}: {INSTALL}"


def _why_no_engine() -> str | None:
    import minisgl_ref.testing  # noqa: F401

    return None


if __name__ == "__main__":
    main()
