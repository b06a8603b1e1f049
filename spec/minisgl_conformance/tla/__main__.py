"""The command line: `python -m minisgl_conformance.tla models|traces|graph`.

Exit code 0: everything as expected; 1: something differs; 2: TLC cannot be run here, or a usage error.
Nothing here decides anything; it prints.
Chapter: tla/README.md
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from minisgl_conformance.adapters.ours_on_backend import make_engine_on
from minisgl_conformance.targets import MakeTarget
from minisgl_conformance.tla import graph, models, mutate, record, replay, tlc, traces
from minisgl_spec.errors import BackendUnavailable
from minisgl_spec.trace import load_log, load_program

SHARD_EVENTS = 60_000  # events of one module: TLC holds the whole log in memory
SHORT_OPS, LONG_OPS = 40, 120  # operations of the programs that are mutated, and of those that are recorded

NEVER_OUTCOMES: Mapping[int, str] = {}
"""Guard outcomes that no trace can show, each with its reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except BackendUnavailable as error:
        _say(str(error), "Install the extra: pip install 'minisgl-ref[engine,tla]'.")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minisgl_conformance.tla", description=__doc__)
    parser.add_argument("--tla", type=Path, default=Path("tla"), help="the folder with the modules")
    commands = parser.add_subparsers(required=True)
    of_models = commands.add_parser("models", help="check every model against the manifest")
    of_models.add_argument("names", nargs="*", help="only these models")
    of_models.add_argument("--size", choices=(models.SMALL, models.LARGE), help="only models of this size")
    of_models.add_argument("--show", action="store_true", help="print what TLC printed")
    of_models.set_defaults(command=_models)
    of_traces = commands.add_parser("traces", help="record runs of the engine and validate them")
    of_traces.add_argument("--seed", type=int, default=1)
    of_traces.add_argument("--events", type=int, default=100_000, help="events to record, at least")
    of_traces.add_argument(
        "--mutants", type=int, default=14, help="changed traces per field and kind of event"
    )
    of_traces.add_argument("--workers", type=int, default=2)
    of_traces.set_defaults(command=_traces)
    of_file = commands.add_parser(
        "trace", help="validate a program and its log, or all that `minisgl-ref fuzz --record` wrote"
    )
    of_file.add_argument("program", type=Path, help="a program, or the folder of --record")
    of_file.add_argument("log", type=Path, nargs="?", help="the log of the program")
    of_file.set_defaults(command=_trace)
    of_graph = commands.add_parser(
        "graph", help="replay every edge of a state graph on oracle, engine and C kernels"
    )
    of_graph.add_argument("--requests", type=int, default=3)
    of_graph.set_defaults(command=_graph)
    return parser


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# -- models ------------------------------------------------------------------------------------


def _models(options: argparse.Namespace) -> int:
    chosen = [
        model
        for model in models.load_manifest(options.tla)
        if (not options.names or model.name in options.names) and options.size in (None, model.size)
    ]
    _say(models.table_head())
    done = []
    for checked in models.check_all(chosen, options.tla):
        done.append(checked)
        _say(models.row(checked))
        if options.show or checked.outcome.result == tlc.FAILED:
            _say(checked.outcome.text)
    _say(models.total_line(done))
    return 1 if any(checked.problems for checked in done) or not done else 0


# -- traces ------------------------------------------------------------------------------------


def _traces(options: argparse.Namespace) -> int:
    tlc.find_jar()
    make_target = make_engine_on("torch")
    recorded = list(_record(make_target, options.seed, options.events))
    disagreements = [one for one in recorded if one.disagreement is not None]
    for one in disagreements:
        _say(f"seed {one.program.origin['seed']}: {one.disagreement}")
    recordings = [traces.trace_of(one.program, one.log) for one in recorded]
    verdicts = [traces.validate(shard, options.tla, options.workers) for shard in _shards(recordings)]
    is_accepted = _report_traces(recordings, verdicts, options.tla)
    is_covered = _report_outcomes(recordings, verdicts)
    is_judged = _report_mutants(make_target, options)
    return 0 if is_accepted and is_covered and is_judged and not disagreements else 1


def _record(make_target: MakeTarget, seed: int, num_events: int) -> Iterator[record.Recorded]:
    recorded = 0
    while recorded < num_events:
        one = record.record(make_target, record.draw_program(seed, LONG_OPS))
        recorded += len(traces.trace_of(one.program, one.log).events)
        seed += 1
        yield one


def _shards(recordings: Sequence[traces.Trace]) -> Iterator[list[traces.Trace]]:
    shard: list[traces.Trace] = []
    num_events = 0
    for trace in recordings:
        shard.append(trace)
        num_events += len(trace.events)
        if num_events >= SHARD_EVENTS:
            yield shard
            shard, num_events = [], 0
    if shard:
        yield shard


def _report_traces(recordings: Sequence[traces.Trace], verdicts: Sequence[traces.Verdict], tla: Path) -> bool:
    accepted = sum(len(verdict.accepted) for verdict in verdicts)
    num_events = sum(len(trace.events) for trace in recordings)
    seconds = sum(verdict.outcome.seconds for verdict in verdicts)
    _say(f"{accepted} of {len(recordings)} traces accepted: {num_events:,} events, {seconds:.0f} s in TLC")
    start = 0
    for verdict in verdicts:
        for idx in verdict.rejected[:1]:
            _say(f"trace {start + idx}:", str(traces.explain(recordings[start + idx], tla)))
        if verdict.outcome.result == tlc.FAILED:
            _say(verdict.outcome.text[-2000:])
        start += verdict.num_traces
    return accepted == len(recordings)


def _report_outcomes(recordings: Sequence[traces.Trace], verdicts: Sequence[traces.Verdict]) -> bool:
    kinds = Counter(event[0] for trace in recordings for event in trace.events)
    _say("actions: " + ", ".join(f"{name} {kinds[kind]:,}" for kind, (name, _) in traces.KINDS.items()))
    seen = frozenset().union(*(verdict.outcomes for verdict in verdicts))
    expected = {2 * guard + way for guard in range(1, len(traces.GUARDS) + 1) for way in (0, 1)}
    missing = sorted(expected - seen - NEVER_OUTCOMES.keys())
    _say(f"guard outcomes: {len(expected & seen)} of {len(expected)} seen")
    for number in missing:
        _say(f"  never {'held back' if number % 2 else 'let through'}: {traces.GUARDS[number // 2 - 1]}")
    return not missing and all(kinds[kind] for kind in traces.KINDS)


def _report_mutants(make_target: MakeTarget, options: argparse.Namespace) -> bool:
    if not options.mutants:
        return True
    programs = (record.draw_program(options.seed + 100_000 + idx, SHORT_OPS) for idx in range(80))
    recorded = [record.record(make_target, program) for program in programs]
    changed = mutate.mutants(
        [traces.trace_of(one.program, one.log) for one in recorded], options.mutants, options.seed
    )
    verdict = traces.validate(
        [mutant.trace for mutant in changed], options.tla, options.workers, is_counting_outcomes="FALSE"
    )
    wrong = [mutant for idx, mutant in enumerate(changed) if (idx in verdict.accepted) != mutant.is_valid]
    num_valid = sum(mutant.is_valid for mutant in changed)
    _say(
        f"{len(changed)} changed traces, {num_valid} of them still valid: "
        f"{len(changed) - len(wrong)} judged right, {verdict.outcome.seconds:.0f} s in TLC"
    )
    for name, count in Counter(mutant.name for mutant in wrong).items():
        _say(f"  judged wrong {count} times: {name}")
    return not wrong and verdict.outcome.result == tlc.PASSED


def _trace(options: argparse.Namespace) -> int:
    """Validate one recorded run, or a folder of them."""
    pairs = _recorded_in(options.program) if options.log is None else [(options.program, options.log)]
    if not pairs:
        _say(f"need a program and its log, or a folder with engine-*.program.jsonl; got {options.program}")
        return 2
    recordings = [
        traces.trace_of(load_program(program.read_text()), load_log(log.read_text()))
        for program, log in pairs
    ]
    verdict = traces.validate(recordings, options.tla)
    num_events = sum(len(trace.events) for trace in recordings)
    _say(f"{len(verdict.accepted)} of {len(recordings)} accepted: {num_events:,} events")
    for idx in verdict.rejected[:1]:
        _say(f"{pairs[idx][0]}:", str(traces.explain(recordings[idx], options.tla)))
    return 1 if verdict.rejected else 0


def _recorded_in(folder: Path) -> list[tuple[Path, Path]]:
    """Return the programs of level `engine` in a folder, each with its log."""
    programs = sorted(folder.glob("engine-*.program.jsonl"))
    return [(program, Path(str(program).replace(".program.", ".log."))) for program in programs]


# -- graph -------------------------------------------------------------------------------------


def _graph(options: argparse.Namespace) -> int:
    setting = graph.setting(options.requests)
    dumped, outcome = graph.dump(setting, options.tla)
    walks = list(graph.walks(dumped))
    covered = {edge for walk in walks for edge in walk}
    _say(
        f"{len(dumped.edges):,} states, {dumped.num_edges:,} edges ({outcome.seconds:.0f} s in TLC); "
        f"{len(covered):,} edges in {len(walks):,} programs"
    )
    judges = {
        replay.ORACLE: replay.oracle_runner(),
        "engine": replay.engine_runner(make_engine_on("torch")),
        "C kernels": replay.engine_runner(make_engine_on("c")),
    }
    found = [replay.replay(dumped, walk, setting, judges) for walk in walks]
    disagreements = [one for one in found if one is not None]
    _say(f"replayed on {', '.join(judges)}: {len(disagreements)} disagreements")
    for one in disagreements[:5]:
        _say(f"  {one}")
    return 0 if len(covered) == dumped.num_edges and not disagreements else 1


if __name__ == "__main__":
    sys.exit(main())
