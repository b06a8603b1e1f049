"""The drivers under a budget: programs from one seed, over one process or several, and a summary.

Hypothesis explores corners with the state machines, the swarm brings volume. Hypothesis runs with a
fixed seed and no database, a swarm's program depends on its number alone: the same seed makes the
same programs in the same order, however many processes share them, and the summary's hash over all
logs says whether two runs saw the same. The first program that breaks a rule is reduced.

Nothing here prints; `cli.py` does.
Chapter: spec/README.md
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from minisgl_conformance import programs, swarm, targets
from minisgl_conformance.machines import FoundError, Session, make_machine
from minisgl_conformance.marks import MARKS
from minisgl_conformance.reduce import reduce
from minisgl_conformance.report import report
from minisgl_conformance.runner import Finding, Result, Runner
from minisgl_conformance.targets import MakeTarget
from minisgl_spec.errors import ContractError
from minisgl_spec.invariants import JUDGES
from minisgl_spec.trace import Json, hash_events

BATCH_SIZE = 50  # programs of one run of Hypothesis
STEP_COUNT = 50  # rules per program

HYPOTHESIS, BOTH = "hypothesis", "both"
DRIVERS = (HYPOTHESIS, swarm.NAME, BOTH)


class ConformanceError(AssertionError):
    """A target broke a rule; the message is the report."""

    def __init__(self, finding: Finding, summary: Summary) -> None:
        super().__init__(report(finding))
        self.finding = finding
        self.summary = summary


@dataclass(frozen=True)
class Tally:
    """What a summary needs to know of one program."""

    num_operations: int
    num_judged_steps: int
    marks: Mapping[str, int]
    log_hash: str
    finding: Finding | None

    @classmethod
    def of(cls, result: Result) -> Tally:
        """Count a result."""
        header = {"level": result.log.level, "config": result.log.config}
        return cls(
            num_operations=result.num_operations,
            num_judged_steps=result.num_judged_steps,
            marks=result.marks.counts,
            log_hash=hash_events((header, *result.program.ops, *result.log.events)),
            finding=result.finding,
        )


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

    def add(self, tally: Tally) -> None:
        """Count a program, and chain its log into the hash."""
        self.num_programs += 1
        self.num_operations += tally.num_operations
        self.num_judged_steps += tally.num_judged_steps
        self.marks.update(tally.marks)
        self.log_hash = sha256(f"{self.log_hash}{tally.log_hash}".encode()).hexdigest()

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


Watch = Callable[[Summary, Result | None], None]
"""Called after every program; where processes share them, after every batch and without a result."""


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
    driver: str = HYPOTHESIS,
    workers: int = 1,
) -> Summary:
    """Run programs until a budget is spent or a rule is broken.

    Args:
        examples: exactly so many programs, if nothing is found.
        seconds:  programs until the time is over, one at least; whichever budget ends first.
        config:   keys of the configuration that are not to be drawn.
        watch:    called after every program.
        shrink:   make the program of a finding small.
        driver:   "hypothesis", "swarm", or "both": a tenth of the programs, half of the time, for Hypothesis.
        workers:  processes that share the swarm's programs; `make_target` must then be importable by name.
    """
    _check(driver, judges, examples)
    fixed = dict(config or {})
    programs.check_fixed(level, fixed)
    began = time.perf_counter()
    summary = Summary(level, seed)
    try:
        streams = _probe(make_target, level, fixed, summary)
        naive = targets.EXACT if level == targets.CACHE else targets.NAIVE
        if naive in summary.not_claimed:
            fixed = {"cache": "radix", **fixed}  # a cache with a policy of its own need not know a naive one
        run = _Run(make_target, level, seed, fixed, tuple(judges), streams, summary, watch, began, shrink)
        if driver == HYPOTHESIS:
            run.hypothesis(examples, seconds)
        elif driver == swarm.NAME:
            run.swarm(examples, seconds, workers)
        else:
            corners = None if examples is None else -(-examples // 10)
            run.hypothesis(corners, None if seconds is None else seconds / 2)
            run.swarm(None if examples is None or corners is None else examples - corners, seconds, workers)
    except KeyboardInterrupt:
        summary.interrupted = True
    summary.seconds = time.perf_counter() - began
    return summary


def _check(driver: str, judges: Collection[str], examples: int | None) -> None:
    """Refuse what would run nothing, or judge less than was asked for."""
    if driver not in DRIVERS:
        raise ContractError("fuzz", f"a driver of {DRIVERS}", {"driver": repr(driver)})
    if isinstance(judges, str):
        raise ContractError("fuzz", f"a collection of judges of {JUDGES}", {"judges": repr(judges)})
    for judge in judges:
        if judge not in JUDGES:
            raise ContractError("fuzz", f"judges of {JUDGES}", {"judge": repr(judge)})
    if examples is not None and examples < 1:
        raise ContractError("fuzz", "examples >= 1", {"examples": examples})


def run_conformance(
    make_target: MakeTarget,
    level: str,
    *,
    page_size: int | None = None,
    examples: int = 200,
    seed: int | None = None,
    judges: Collection[str] = JUDGES,
    config: Mapping[str, Any] | None = None,
    driver: str = HYPOTHESIS,
) -> Summary:
    """Hold a target to the definition; return a summary if it keeps every rule.

    Args:
        make_target: builds a `CacheTarget` or an `EngineTarget` from a configuration.
        level:       "cache" or "engine".
        page_size:   the only page size to try; all of them if left out.
        seed:        the same seed tries the same programs; 0 if left out.
        config:      keys of the configuration that are not to be drawn.
        driver:      "hypothesis", "swarm" or "both", as `fuzz`.

    Raises: ConformanceError with the report of a minimal program that breaks a rule.
    """
    fixed = dict(config or {})
    if page_size is not None:
        fixed["page_size"] = page_size
    summary = fuzz(
        make_target, level, seed=seed or 0, examples=examples, judges=judges, config=fixed, driver=driver
    )
    if summary.findings:
        raise ConformanceError(summary.findings[0], summary)
    return summary


@dataclass
class _Run:
    """One call of `fuzz`: what every batch needs, and where it is counted."""

    make_target: MakeTarget
    level: str
    seed: int
    fixed: Json
    judges: tuple[str, ...]
    streams: tuple[str, ...]
    summary: Summary
    watch: Watch | None
    began: float
    shrink: bool

    def hypothesis(self, examples: int | None, seconds: float | None) -> None:
        """Run batches of the state machines."""
        batch_idx, end = 0, None if examples is None else self.summary.num_programs + examples
        while not self.summary.findings and not self._is_over(seconds):
            left = BATCH_SIZE if end is None else min(BATCH_SIZE, end - self.summary.num_programs)
            if left <= 0:
                break
            origin = {"driver": HYPOTHESIS, "seed": self.seed, "batch": batch_idx}
            session = _Watched(self.make_target, self.level, self.fixed, self.judges, self.streams, origin)
            session.run, session.seconds = self, seconds
            try:
                _run_batch(session, _batch_seed(self.seed, batch_idx), left)
            except TimeIsOver:  # the swarm's share of the time is still to come
                return
            if session.finding is not None:
                self._found(session.finding)
            batch_idx += 1

    def swarm(self, examples: int | None, seconds: float | None, workers: int) -> None:
        """Run the swarm's programs in order of their numbers, here or in worker processes."""
        if examples == 0 or self.summary.findings:
            return
        if workers > 1:
            self._share(examples, seconds, workers)
            return
        number = 0
        while (examples is None or number < examples) and not self._is_over(seconds):
            result = self.program_of(number)
            self.count(Tally.of(result), result)
            if result.finding is not None:
                self._found(result.finding)
                return
            number += 1

    def program_of(self, number: int) -> Result:
        """Run one program of the swarm."""
        return swarm.run_program_of(
            self.make_target,
            self.level,
            self.seed,
            number,
            fixed=self.fixed,
            judges=self.judges,
            streams=self.streams,
        )

    def count(self, tally: Tally, result: Result | None) -> None:
        """Count a program."""
        self.summary.add(tally)
        self.summary.seconds = time.perf_counter() - self.began
        if self.watch is not None and result is not None:
            self.watch(self.summary, result)

    def _share(self, examples: int | None, seconds: float | None, workers: int) -> None:
        """Give batches to worker processes and count them in order, up to the first finding."""
        job = (self.make_target, self.level, self.seed, self.fixed, self.judges, self.streams)
        with workers_of(workers) as pool:
            batches: deque[Future[list[Tally]]] = deque()
            start = 0
            while True:
                while len(batches) < 2 * workers and not self._is_over(seconds):
                    count = BATCH_SIZE if examples is None else min(BATCH_SIZE, examples - start)
                    if count <= 0:
                        break
                    batches.append(pool.submit(run_swarm_batch, *job, start, count))
                    start += count
                if not batches:
                    return
                for tally in batches.popleft().result():
                    self.count(tally, None)
                    if tally.finding is not None:
                        pool.shutdown(wait=False, cancel_futures=True)
                        self._found(tally.finding)
                        return
                if self.watch is not None:
                    self.watch(self.summary, None)

    def _is_over(self, seconds: float | None) -> bool:
        is_over = seconds is not None and time.perf_counter() - self.began >= seconds
        return is_over and self.summary.num_programs > 0

    def _found(self, finding: Finding) -> None:
        self.summary.findings.append(finding)  # before it is reduced: Ctrl-C loses nothing
        if self.shrink:
            self.summary.findings[-1] = reduce(self.make_target, finding, self.judges, self.fixed)


@contextmanager
def workers_of(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes as `start_workers` does; end them with the block."""
    pool = start_workers(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def start_workers(count: int) -> ProcessPoolExecutor:
    """Start processes by spawn, one kernel thread each.

    A child forked after an OpenMP region hangs, and two threads per process only wait for each other.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, context, initializer=_use_one_thread)


def _use_one_thread() -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def run_swarm_batch(
    make_target: MakeTarget,
    level: str,
    seed: int,
    fixed: Json,
    judges: Sequence[str],
    streams: Sequence[str],
    start: int,
    count: int,
) -> list[Tally]:
    """Run programs start:start + count of a seed, up to the first that breaks a rule."""
    tallies: list[Tally] = []
    for number in range(start, start + count):
        result = swarm.run_program_of(
            make_target, level, seed, number, fixed=fixed, judges=judges, streams=streams
        )
        tallies.append(Tally.of(result))
        if result.finding is not None:
            break
    return tallies


class _Watched(Session):
    """A session that counts its programs as they end."""

    run: _Run
    seconds: float | None

    def ran(self, runner: Runner) -> None:
        """Count a program."""
        result = runner.result()
        self.run.count(Tally.of(result), result)
        if self.seconds is not None and self.run.summary.seconds >= self.seconds and self.finding is None:
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
    if level != targets.CACHE:
        plain |= {"num_rows": 2, "max_seq_len": 32}
    if level == targets.ENGINE:
        plain |= {"token_budget": 16, "overlap": False}
        plain |= {"eos_ids": [], "model": "digest", "streams": "inline"}
        plain["vocab_size"] = programs.VOCAB_SIZES.get(fixed.get("model", "digest"), 6)
    target = make_target(targets.target_config({**plain, **fixed}))
    targets.check_capabilities(target, level)
    summary.not_claimed = targets.not_claimed(target, level)
    return ("inline", "simulated") if targets.claims(target, targets.LATE_WORK) else ("inline",)


def _run_batch(session: Session, seed: int, examples: int) -> None:
    """Run one batch of programs; a finding is left in the session, as it was found."""
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
                phases=(Phase.generate,),
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
                verbosity=Verbosity.quiet,
                print_blob=False,
            ),
        )
    except (FoundError, Flaky):
        # Flaky: the target does not do the same twice. What was seen the first time is the finding.
        return


def _batch_seed(seed: int, batch_idx: int) -> int:
    return seed * 1_000_003 + batch_idx
