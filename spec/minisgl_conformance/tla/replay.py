"""Three judges on one run: the model, the oracle and an engine, compared event by event.

A walk over the model's graph becomes a program; the oracle and every engine run it, each engine
under the full judgement of its runner. Where one of them differs from the others, it is the culprit.

Nothing here dumps graphs or runs TLC.
Chapter: tla/README.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minisgl_conformance.engine_runner import EngineRunner
from minisgl_conformance.targets import MakeTarget
from minisgl_conformance.tla.graph import BATCH_MODULUS, Edge, Graph, Setting
from minisgl_conformance.tla.record import run_oracle
from minisgl_conformance.tla.traces import CODES, KINDS, Event, answer_of, describe, trace_of
from minisgl_spec.numerics import digest_next_token
from minisgl_spec.requests import Config
from minisgl_spec.scheduler import Scheduler
from minisgl_spec.trace import Json, Log, Program

MODEL, ORACLE = "model", "oracle"


@dataclass(frozen=True)
class Run:
    """What one judge made of a program: its events, and the rule it broke, if any."""

    events: tuple[Event, ...]
    broken: str | None = None


RunProgram = Callable[[Program], Run]


@dataclass(frozen=True)
class Disagreement:
    """The first event in which judges differ, and which of them is alone with its answer."""

    culprit: str
    event_idx: int
    answers: Mapping[str, str]

    def __str__(self) -> str:
        answers = "; ".join(f"{name}: {answer}" for name, answer in self.answers.items())
        return f"{self.culprit} differs at event {self.event_idx}: {answers}"


def compare(runs: Mapping[str, Run]) -> Disagreement | None:
    """Find the first event in which the runs differ, or None; the culprit is in the minority."""
    for name, run in runs.items():
        if run.broken is not None:
            return Disagreement(name, len(run.events), {name: run.broken})
    for event_idx in range(max(len(run.events) for run in runs.values())):
        at = {
            name: run.events[event_idx] if event_idx < len(run.events) else None for name, run in runs.items()
        }
        votes = Counter(at.values())
        if len(votes) > 1:
            rarest = min(votes, key=lambda event: votes[event])
            culprit = ", ".join(name for name, event in at.items() if event == rarest)
            answers = {name: "nothing" if event is None else describe(event) for name, event in at.items()}
            return Disagreement(culprit, event_idx, answers)
    return None


# -- a walk as a program -----------------------------------------------------------------------


def complete(graph: Graph, walk: Sequence[Edge]) -> list[Edge]:
    """Return a walk that ends between two operations."""
    edges = list(walk)
    while not any(edge.event[0] == CODES["begin_step"] for edge in graph.edges[edges[-1].target]):
        edges.append(graph.edges[edges[-1].target][0])
    return edges


def program_of(walk: Sequence[Edge], setting: Setting) -> Program:
    """Return the program whose operations a walk makes."""
    ops: list[Json] = []
    for edge in walk:
        event = edge.event
        if event[0] == CODES["submit"]:
            ops.append({"op": "submit", "uid": event[1], "ids": list(event[6]), "max_tokens": event[7]})
        elif event[0] == CODES["abort"]:
            ops.append({"op": "abort", "uid": event[1]})
        elif event[0] == CODES["reset"]:
            ops.append({"op": "reset"})
        elif event[0] == CODES["begin_step"]:
            ops.append({"op": "step", "progress": [len(ops) % 4, len(ops) % 3]})
    config = {"model": "digest", "streams": "simulated", **setting.config}
    return Program("engine", config, ops, {"source": "state graph"})


def run_of(walk: Sequence[Edge]) -> Run:
    """Return the model's own run: the events of a walk."""
    return Run(tuple(edge.event for edge in walk))


def run_of_log(program: Program, log: Log, broken: str | None = None) -> Run:
    """Return a log's events in the form of the model's, batches numbered as in a graph."""
    return Run(tuple(_renumbered(answer_of(event)) for event in trace_of(program, log).events), broken)


def _renumbered(event: Event) -> Event:
    if event[0] in (CODES["launch"], CODES["process"]):
        return (event[0], event[1] % BATCH_MODULUS, *event[2:])
    return event


# -- judges ------------------------------------------------------------------------------------


def oracle_runner(make_oracle: Callable[[Config, Any], Scheduler] = Scheduler) -> RunProgram:
    """Return a judge that runs programs on an oracle."""

    def run(program: Program) -> Run:
        config = Config.from_json(program.config)
        oracle = make_oracle(
            config, lambda ids, sampling, idx, uid: digest_next_token(ids, sampling, idx, config.vocab_size)
        )
        events = tuple(run_oracle(oracle, op) for op in program.ops)
        return run_of_log(program, Log(program.level, program.config, events))

    return run


def engine_runner(make_target: MakeTarget) -> RunProgram:
    """Return a judge that runs programs on an engine, under the full judgement of its runner."""

    def run(program: Program) -> Run:
        runner = EngineRunner(make_target, program.config)
        for op in program.ops:
            finding = runner.apply(op)
            if finding is not None:
                return run_of_log(program, runner.result().log, f"{finding.rule}: {finding.fact}")
        return run_of_log(program, runner.result().log)

    return run


def replay(
    graph: Graph, walk: Sequence[Edge], setting: Setting, judges: Mapping[str, RunProgram]
) -> Disagreement | None:
    """Run a walk's program under every judge and compare with the model."""
    edges = complete(graph, walk)
    program = program_of(edges, setting)
    runs = {MODEL: run_of(edges), **{name: judge(program) for name, judge in judges.items()}}
    return compare(runs)


def kinds_of(walks: Sequence[Sequence[Edge]]) -> Counter[str]:
    """Count the events of walks by kind."""
    return Counter(KINDS[edge.event[0]][0] for walk in walks for edge in walk)
