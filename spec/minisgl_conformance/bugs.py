"""Bug hunts: how soon the fuzzer finds a deliberate fault, what it says of it, and who sees it.

A hunt runs the swarm's programs on an engine that has one fault, its own checks off, until a rule is
broken; reduces what it found; then asks how many programs show the fault, which of the three judges
sees it without the other two, and whether blame is right. Blame is right if it names the first
operation after which the faulty engine and the right one are not the same any more, tick aside.

Nothing here knows a particular fault.
Chapter: spec/deviations.md
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from statistics import median
from typing import Any

from minisgl_conformance import swarm
from minisgl_conformance.adapters import zoo
from minisgl_conformance.blame import timeless
from minisgl_conformance.fuzz import workers_of
from minisgl_conformance.reduce import reduce
from minisgl_conformance.rules import judge_of
from minisgl_conformance.runner import Finding, Result, Runner, make_runner, run_program
from minisgl_conformance.targets import ENGINE, MakeTarget
from minisgl_spec.errors import ContractError
from minisgl_spec.invariants import JUDGES
from minisgl_spec.trace import Json, Program

SECONDS = 30.0
"""Processor time that a hunt may take to its first finding."""

SAMPLE = 300
"""Programs that are run to see how many show a fault."""

STREAMS = ("inline", "simulated")


@dataclass(frozen=True)
class Hunt:
    """What hunting one fault gave."""

    name: str
    level: str
    rule: str  # declared
    found: bool = False
    named: str = ""  # the first rule that was named
    programs: int = 0
    operations: int = 0
    seconds: float = 0.0  # of processor time, to the first finding
    share: float | None = None  # of random programs that show it; None where it was not measured
    length: int = 0  # operations after reduction
    reduce_seconds: float = 0.0
    blame: int = -1
    truth: int = -1  # the first operation after which right and faulty differ
    judges: tuple[str, ...] = ()  # that see it alone
    finding: Finding | None = field(default=None, compare=False)

    @property
    def is_named(self) -> bool:
        """Whether the declared rule came first."""
        return self.found and self.named == self.rule

    @property
    def is_blamed(self) -> bool:
        """Whether the right operation is blamed."""
        return self.found and self.blame == self.truth

    def to_json(self) -> Json:
        """Return the hunt as plain values."""
        values = asdict(replace(self, finding=None))
        del values["finding"]
        return {**values, "is_named": self.is_named, "is_blamed": self.is_blamed}


def hunt(name: str, seed: int, seconds: float = SECONDS, only_find: bool = False) -> Hunt:
    """Hunt one fault.

    Args:
        seconds:   of processor time, to the first finding.
        only_find: stop after the finding is reduced; share and judges are left out.
    """
    fault = zoo.fault_of(name)
    make_target = zoo.Faulty(name, fault.level)
    result, hunted = _first_finding(make_target, Hunt(name, fault.level, fault.rule), seed, seconds)
    if result is None or result.finding is None:
        return hunted
    began = time.process_time()
    finding = reduce(make_target, result.finding)
    hunted = replace(
        hunted,
        length=len(finding.program.ops),
        reduce_seconds=time.process_time() - began,
        blame=finding.blame_idx,
        truth=first_difference(make_target, zoo.make_right(fault.level), finding),
        finding=finding,
    )
    if only_find:
        return hunted
    shown = [
        result.program
        for result in (_run(make_target, fault.level, seed, number, JUDGES) for number in range(SAMPLE))
        if result.finding is not None
    ]
    programs = [finding.program, result.finding.program, *shown]
    return replace(
        hunted,
        share=len(shown) / SAMPLE,
        judges=tuple(judge for judge in JUDGES if sees(make_target, judge, programs)),
    )


def hunt_all(
    names: Sequence[str],
    seed: int,
    workers: int = 1,
    only_find: bool = False,
    watch: Callable[[Hunt], None] | None = None,
) -> list[Hunt]:
    """Hunt faults, shared among worker processes; in the order of their names."""
    hunts: list[Hunt] = []
    for hunted in _hunts(names, seed, workers, only_find):
        hunts.append(hunted)
        if watch is not None:
            watch(hunted)
    return hunts


def _hunts(names: Sequence[str], seed: int, workers: int, only_find: bool) -> Iterator[Hunt]:
    if workers == 1:
        yield from (hunt(name, seed, only_find=only_find) for name in names)
        return
    with workers_of(workers) as pool:
        jobs = [pool.submit(hunt, name, seed, SECONDS, only_find) for name in names]
        yield from (job.result() for job in jobs)


def sees(make_target: MakeTarget, judge: str, programs: Sequence[Program]) -> bool:
    """Say whether one judge, without the other two, names a rule of its own in one of some programs.

    A judge alone sees nothing in a program in which all three together see nothing.
    """
    findings = (run_program(make_target, program, (judge,)).finding for program in programs)
    return any(
        finding is not None and any(judge_of(rule) == judge for rule in finding.rules) for finding in findings
    )


def first_difference(make_target: MakeTarget, make_right: MakeTarget, finding: Finding) -> int:
    """Run the program of a finding on both engines; return the first operation that leaves them unlike."""
    faulty, right = (
        make_runner(finding.program.level, make, finding.program.config, ())
        for make in (make_target, make_right)
    )
    rest: Json = {"op": "step", "progress": []}
    ops = [*finding.program.ops, *[rest] * (finding.step_idx + 1 - len(finding.program.ops))]
    for idx, op in enumerate(ops):
        try:
            faulty.apply(op)
            right.apply(op)
        except ContractError:
            return idx
        if _observed(faulty) != _observed(right):
            return idx
    return finding.step_idx


def table(hunts: Sequence[Hunt]) -> str:
    """Return the hunts as a Markdown table with the figures that sum them up."""
    lines = [
        "| fault | level | found | operations | seconds | share | length | rule named | blame | judges |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- | --- | --- |",
    ]
    lines += [_row(hunted) for hunted in hunts]
    return "\n".join([*lines, "", *summary_lines(hunts)]) + "\n"


def summary_lines(hunts: Sequence[Hunt]) -> list[str]:
    """Return the figures of all hunts together."""
    found = [hunted for hunted in hunts if hunted.found]
    if not found:
        return [f"found: 0 of {len(hunts)}"]
    seconds = sorted(hunted.seconds for hunted in found)
    lengths = sorted(hunted.length for hunted in found)
    most = lengths[ceil(0.95 * len(lengths)) - 1]
    shares = [hunted.share for hunted in found if hunted.share is not None]
    two = sum(len(hunted.judges) >= 2 for hunted in found)
    measured = [
        f"shown by fewer than 10 % of random programs: {sum(share < 0.1 for share in shares)}",
        f"seen by two judges or more: {two}",
    ]
    return [
        f"found: {len(found)} of {len(hunts)}",
        f"seconds to the first finding: median {median(seconds):.2f}, most {seconds[-1]:.2f}",
        f"operations after reduction: median {median(lengths):g}, 95 % at most {most}, most {lengths[-1]}",
        f"seconds of a reduction: most {max(hunted.reduce_seconds for hunted in found):.2f}",
        f"declared rule first: {sum(hunted.is_named for hunted in found)} of {len(found)}",
        f"blame right: {sum(hunted.is_blamed for hunted in found)} of {len(found)}",
        *(measured if len(shares) == len(found) else ["shares and single judges: not measured"]),
    ]


def _row(hunted: Hunt) -> str:
    if not hunted.found:
        return (
            f"| {hunted.name} | {hunted.level} | no | {hunted.operations} | {hunted.seconds:.2f} | | | | | |"
        )
    named = hunted.named if hunted.is_named else f"{hunted.named}, not {hunted.rule}"
    blame = "right" if hunted.is_blamed else f"step {hunted.blame}, not {hunted.truth}"
    share = "" if hunted.share is None else f"{hunted.share:.0%}"
    return (
        f"| {hunted.name} | {hunted.level} | yes | {hunted.operations} | {hunted.seconds:.2f} "
        f"| {share} | {hunted.length} | {named} | {blame} | {', '.join(hunted.judges)} |"
    )


def _first_finding(
    make_target: MakeTarget, hunted: Hunt, seed: int, seconds: float
) -> tuple[Result | None, Hunt]:
    """Run programs until one breaks a rule or the time is over."""
    _run(make_target, hunted.level, seed, -1, ())  # loads the faulty modules; not counted
    began = time.process_time()
    operations, number = 0, 0
    while time.process_time() - began < seconds:
        result = _run(make_target, hunted.level, seed, number, JUDGES)
        operations += result.num_operations
        number += 1
        if result.finding is not None:
            spent = time.process_time() - began
            found = replace(
                hunted,
                found=True,
                named=result.finding.rule,
                programs=number,
                operations=operations,
                seconds=spent,
            )
            return result, found
    return None, replace(hunted, programs=number, operations=operations, seconds=time.process_time() - began)


def _run(make_target: MakeTarget, level: str, seed: int, number: int, judges: Collection[str]) -> Result:
    streams = STREAMS if level == ENGINE else STREAMS[:1]
    return swarm.run_program_of(make_target, level, seed, number, judges=judges, streams=streams)


def _observed(runner: Runner) -> tuple[Any, ...]:
    """Return what the last operation answered and left behind."""
    return runner.events[-1], timeless(runner.view), getattr(runner, "executed", ())
