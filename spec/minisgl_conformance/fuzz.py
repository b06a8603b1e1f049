"""The driver of the machines: batches of programs from one seed, a budget, and a summary.

Hypothesis runs with a fixed seed and no database, so the same seed makes the same programs, in the
same order: the summary's hash over all logs says whether two runs saw the same. A batch that breaks
a rule is shrunk, and its program can be replayed.

Nothing here prints; `cli.py` does.
Chapter: spec/README.md
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from minisgl_conformance import programs, targets
from minisgl_conformance.machines import FoundError, Session, make_machine
from minisgl_conformance.marks import MARKS
from minisgl_conformance.report import report
from minisgl_conformance.runner import Finding, Result
from minisgl_conformance.targets import MakeTarget
from minisgl_spec.invariants import JUDGES
from minisgl_spec.trace import Json, hash_events

BATCH_SIZE = 50  # programs of one run of Hypothesis
STEP_COUNT = 50  # rules per program


class ConformanceError(AssertionError):
    """A target broke a rule; the message is the report."""

    def __init__(self, finding: Finding, summary: Summary) -> None:
        super().__init__(report(finding))
        self.finding = finding
        self.summary = summary


@dataclass
class Summary:
    """What a run of the fuzzer did."""

    level: str
    seed: int
    not_claimed: tuple[str, ...] = ()
    num_programs: int = 0
    num_operations: int = 0
    num_judged_steps: int = 0
    seconds: float = 0.0
    marks: Counter[str] = field(default_factory=Counter)
    log_hash: str = ""
    findings: list[Finding] = field(default_factory=list)
    interrupted: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """The marks that were not reached."""
        return tuple(name for name in MARKS[self.level] if not self.marks[name])

    @property
    def operations_per_second(self) -> float:
        """Operations judged per second, all of Hypothesis included."""
        return self.num_operations / self.seconds if self.seconds else 0.0

    @property
    def judged_steps_per_second(self) -> float:
        """Steps judged per second, all of Hypothesis included."""
        return self.num_judged_steps / self.seconds if self.seconds else 0.0

    def add(self, result: Result) -> None:
        """Count a program, and chain its log into the hash."""
        self.num_programs += 1
        self.num_operations += result.num_operations
        self.num_judged_steps += result.num_judged_steps
        self.marks.update(result.marks.counts)
        header = {"after": self.log_hash, "level": result.log.level, "config": result.log.config}
        self.log_hash = hash_events((header, *result.program.ops, *result.log.events))

    def to_json(self) -> Json:
        """Return the summary as plain values; all but the two times are the seed's alone."""
        return {
            "level": self.level,
            "seed": self.seed,
            "programs": self.num_programs,
            "operations": self.num_operations,
            "judged_steps": self.num_judged_steps,
            "seconds": round(self.seconds, 3),
            "operations_per_second": round(self.operations_per_second, 1),
            "judged_steps_per_second": round(self.judged_steps_per_second, 1),
            "marks": {name: self.marks[name] for name in MARKS[self.level]},
            "marks_missing": list(self.missing),
            "not_claimed": list(self.not_claimed),
            "log_hash": self.log_hash,
            "findings": [{"rule": f.rule, "fact": f.fact} for f in self.findings],
            "interrupted": self.interrupted,
        }


Watch = Callable[[Summary, Result], None]
"""Called after every program."""


def fuzz(
    make_target: MakeTarget,
    level: str,
    *,
    seed: int,
    examples: int | None = None,
    seconds: float | None = None,
    judges: Collection[str] = JUDGES,
    config: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    shrink: bool = True,
) -> Summary:
    """Run programs until a budget is spent or a rule is broken.

    Args:
        examples: exactly so many programs, if nothing is found.
        seconds:  programs until the time is over, one at least; whichever budget ends first.
        config:   keys of the configuration that are not to be drawn.
        watch:    called after every program.
        shrink:   make the program of a finding small; takes longer than finding it.
    """
    fixed = dict(config or {})
    programs.check_fixed(level, fixed)
    began = time.perf_counter()
    summary = Summary(level, seed)
    streams = _probe(make_target, level, fixed, summary)
    if level == targets.CACHE and targets.EXACT in summary.not_claimed:
        fixed = {"cache": "radix", **fixed}  # a cache with a policy of its own need not know a naive one
    batch_idx = 0
    try:
        while not summary.findings:
            left = BATCH_SIZE if examples is None else min(BATCH_SIZE, examples - summary.num_programs)
            if left <= 0:
                break
            origin = {"seed": seed, "batch": batch_idx}
            session = _Watched(make_target, level, fixed, judges, streams, origin)
            session.follow(summary, watch, began, seconds)
            _run_batch(session, _batch_seed(seed, batch_idx), left, shrink)
            if session.finding is not None:
                summary.findings.append(session.smallest or session.finding)
            batch_idx += 1
    except TimeIsOver:
        pass
    except KeyboardInterrupt:
        summary.interrupted = True
    summary.seconds = time.perf_counter() - began
    return summary


def run_conformance(
    make_target: MakeTarget,
    level: str,
    *,
    page_size: int | None = None,
    examples: int = 200,
    seed: int | None = None,
    judges: Collection[str] = JUDGES,
    config: Mapping[str, Any] | None = None,
) -> Summary:
    """Hold a target to the definition; return a summary if it keeps every rule.

    Args:
        make_target: builds a `CacheTarget` or an `EngineTarget` from a configuration.
        level:       "cache" or "engine".
        page_size:   the only page size to try; all of them if left out.
        seed:        the same seed tries the same programs; 0 if left out.
        config:      keys of the configuration that are not to be drawn.

    Raises: ConformanceError with the report of a minimal program that breaks a rule.
    """
    fixed = dict(config or {})
    if page_size is not None:
        fixed["page_size"] = page_size
    summary = fuzz(make_target, level, seed=seed or 0, examples=examples, judges=judges, config=fixed)
    if summary.findings:
        raise ConformanceError(summary.findings[0], summary)
    return summary


class _Watched(Session):
    """A session that counts its programs as they end."""

    def follow(self, summary: Summary, watch: Watch | None, began: float, seconds: float | None) -> None:
        """Count into `summary`, and tell `watch`."""
        self.summary, self.watch, self.began, self.seconds = summary, watch, began, seconds

    def ran(self, runner: Any) -> None:
        """Count a program."""
        result = runner.result()
        self.summary.add(result)
        self.summary.seconds = time.perf_counter() - self.began
        if self.watch is not None:
            self.watch(self.summary, result)
        if self.seconds is not None and self.summary.seconds >= self.seconds and self.finding is None:
            raise TimeIsOver


class TimeIsOver(KeyboardInterrupt):
    """The budget of time is spent: Hypothesis stops at once, as for Ctrl-C."""


def _probe(
    make_target: MakeTarget, level: str, fixed: Mapping[str, Any], summary: Summary
) -> tuple[str, ...]:
    """Make one target to learn what it claims, and to import what it needs before anything is drawn.

    Returns: the streams that it can be built with: simulated ones if its work may come late.
    """
    plain: Json = {"page_size": 1, "num_pages": 8, "cache": "radix"}
    if level == targets.ENGINE:
        plain |= {"num_rows": 2, "max_seq_len": 32, "token_budget": 16, "overlap": False}
        plain |= {"eos_ids": [], "model": "digest", "streams": "inline"}
        plain["vocab_size"] = programs.VOCAB_SIZES.get(fixed.get("model", "digest"), 6)
    target = make_target(targets.target_config({**plain, **fixed}))
    summary.not_claimed = targets.not_claimed(target, level)
    return ("inline", "simulated") if targets.claims(target, targets.LATE_WORK) else ("inline",)


def _run_batch(session: Session, seed: int, examples: int, shrink: bool) -> None:
    """Run one batch of programs; a finding is left in the session."""
    machine = hypothesis.seed(seed)(make_machine(session))
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=STEP_COUNT,
                database=None,
                deadline=None,
                derandomize=False,
                phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
                verbosity=Verbosity.quiet,
                print_blob=False,
            ),
        )
    except FoundError as error:
        session.smallest = error.finding
    except Flaky:
        # The target does not do the same twice: what was seen the first time is the finding.
        session.smallest = session.finding


def _batch_seed(seed: int, batch_idx: int) -> int:
    return seed * 1_000_003 + batch_idx
