"""The reducer: makes the program of a finding as small as it gets while the same rule keeps failing.

It drops operations, in chunks and then one by one; makes the configuration, the prompts and the plans
of the streams plainer; and starts again until nothing can be removed. Handles and uids follow: an
operation whose handle was dropped is dropped with it. One reducer serves every source of programs.

Its budget is counted in operations run, never in seconds, so that the same finding is always reduced
to the same program. The last pass, which shows that no single operation can be dropped, always ends.

Nothing here judges: a candidate is run like any program.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import maxsize
from typing import Any

from minisgl_conformance import targets
from minisgl_conformance.runner import Finding, Runner, make_runner
from minisgl_conformance.targets import COMPARE, MakeTarget
from minisgl_spec.errors import ContractError
from minisgl_spec.invariants import JUDGES
from minisgl_spec.trace import Json

BUDGET = {targets.CACHE: 20_000, targets.MANAGER: 12_000, targets.ENGINE: 2_000}
"""Operations that reducing one finding may run, `ROUNDS` times at most, before its last pass."""

ChangeIds = Callable[[tuple[int, ...]], tuple[int, ...]]

LONG, SHORT, ROUNDS = 24, 8, 6
"""A program of more than `LONG` operations is first swept: its chunks are dropped in passing. One that is
longer than `SHORT` when the budget is spent gets it anew, up to so many times."""

MAX_PAIRS = 14
"""Operations up to which every pair of them is tried, too."""


@dataclass(frozen=True)
class Step:
    """One operation of a candidate.

    number: its place in the program that is being reduced, kept when others are dropped.
    maker:  the number of the step that made the handle it names, if it names one.
    """

    number: int
    op: Json
    maker: int | None = None


@dataclass(frozen=True)
class Candidate:
    """A program whose handles are named by the steps that made them."""

    config: Json
    steps: tuple[Step, ...]


def reduce(
    make_target: MakeTarget,
    finding: Finding,
    judges: Collection[str] = JUDGES,
    fixed: Collection[str] = (),
) -> Finding:
    """Return a finding of the same rule whose program is as small as this reducer can make it.

    The finding itself comes back if its program does not break the rule again.

    Args:
        fixed: keys of the configuration that stay as they are.
    """
    return _Reducer(make_target, finding, judges, fixed).run()


class _Reducer:
    """The smallest candidate so far, and what it may still cost."""

    def __init__(
        self, make_target: MakeTarget, finding: Finding, judges: Collection[str], fixed: Collection[str]
    ) -> None:
        self.make_target = make_target
        self.judges = judges
        self.fixed = frozenset(fixed)
        self.level = finding.program.level
        self.origin = dict(finding.program.origin)
        self.rule = finding.rule
        self.first = finding
        self.left = BUDGET[self.level]
        self.best = Candidate(dict(finding.program.config), self._steps_of(finding))
        self.runner: Runner | None = None  # of the best candidate
        self.comes_to_rest = False  # whether a candidate ends with the steps that let the target rest
        self.tried: set[str] = set()

    def run(self) -> Finding:
        """Reduce until nothing changes or the budget is spent, then make sure of every single operation."""
        if not self._accepts(self.best):  # it fails when the target comes to rest, if at all
            self.comes_to_rest = True
            self.tried.clear()
            if not self._accepts(self.best):
                return self.first
        passes: tuple[Callable[[], Iterator[Candidate]], ...] = (
            self._without_chunks,
            self._without_submission,
            self._plainer_configs,
            self._plainer_prompts,
            self._plainer_ops,
            self._without_pairs,
        )
        for _ in range(ROUNDS):
            if len(self.best.steps) > LONG:
                self.comes_to_rest = True  # the steps that let it rest may stand for the program's own
                self._sweep()
            before = None
            while before != self.best and self.left > 0:
                before = self.best
                for candidates in passes:
                    self._follow(candidates)
            if self.left > 0 or len(self.best.steps) <= SHORT:
                break
            self.left = BUDGET[self.level]
        self.left = max(self.left, 0) + BUDGET[self.level]
        if not self.comes_to_rest:  # the steps that let it rest may stand for some of the program's own
            self.comes_to_rest = True
            self.tried.clear()
            self._follow(self._without_chunks)
        self.left = maxsize
        self._follow(self._without_one)
        assert self.runner is not None
        found = self.runner.result().finding
        assert found is not None
        return found

    def _sweep(self) -> None:
        """Drop chunks of half the program, a quarter, and so on, each place once per size."""
        size = len(self.best.steps) // 2
        while size and self.left > 0:
            end = len(self.best.steps)
            while end > 0 and self.left > 0:
                steps = self.best.steps
                self._accepts(self._with_steps((*steps[: max(0, end - size)], *steps[end:])))
                end = min(end - size, len(self.best.steps))
            size //= 2

    # -- running candidates ------------------------------------------------------------------

    def _follow(self, candidates: Callable[[], Iterator[Candidate]]) -> None:
        """Take the first candidate that still fails, and ask for candidates of that one; to the end."""
        changed = True
        while changed:
            changed = False
            for candidate in candidates():
                if self.left <= 0:
                    return
                if self._accepts(candidate):
                    changed = True
                    break

    def _accepts(self, candidate: Candidate) -> bool:
        """Run a candidate; make it the best one if the rule fails."""
        key = repr(candidate)
        if key in self.tried:
            return False
        self.tried.add(key)
        try:
            runner = make_runner(self.level, self.make_target, candidate.config, self.judges, self.origin)
            used = self._play(runner, candidate)
        except ContractError:  # the candidate is no program
            return False
        self.left -= len(runner.ops) + 1
        if runner.finding is None or runner.finding.rule != self.rule:
            return False
        self.best, self.runner = replace(candidate, steps=used), runner
        return True

    def _play(self, runner: Runner, candidate: Candidate) -> tuple[Step, ...]:
        """Run the steps that can be run; return those that were, up to the finding."""
        made: dict[int, int] = {}
        used: list[Step] = []
        for step in candidate.steps:
            op = step.op
            if step.maker is not None:
                if step.maker not in made and op["op"] != "insert":
                    continue
                op = {**op, "handle": made.get(step.maker)}
            finding = runner.apply(op)
            used.append(step)
            handle = runner.events[-1].get("handle")
            if handle is not None:
                made[step.number] = handle
            if finding is not None:
                return tuple(used)
        if self.comes_to_rest:
            runner.finish()
        return tuple(used)

    def _steps_of(self, finding: Finding) -> tuple[Step, ...]:
        """Name handles by the steps that made them; for that the program is run once."""
        program = finding.program
        if self.level != targets.CACHE:
            return tuple(Step(number, op) for number, op in enumerate(program.ops))
        runner = make_runner(self.level, self.make_target, program.config, self.judges)
        makers: dict[int, int] = {}
        for number, op in enumerate(program.ops):
            if runner.apply(op) is not None:
                break
            handle = runner.events[-1].get("handle")
            if handle is not None:
                makers[handle] = number
        return tuple(
            Step(number, op, makers.get(op.get("handle", -1))) for number, op in enumerate(program.ops)
        )

    # -- candidates --------------------------------------------------------------------------

    def _without_chunks(self) -> Iterator[Candidate]:
        """Drop half of the operations, a quarter, and so on down to one, the last ones first."""
        steps = self.best.steps
        size = max(1, len(steps) // 2)
        while True:
            for end in range(len(steps), 0, -size):
                yield self._with_steps((*steps[: max(0, end - size)], *steps[end:]))
            if size == 1:
                return
            size //= 2

    def _without_one(self) -> Iterator[Candidate]:
        steps = self.best.steps
        for idx in reversed(range(len(steps))):
            yield self._with_steps((*steps[:idx], *steps[idx + 1 :]))

    def _without_submission(self) -> Iterator[Candidate]:
        """Drop one submission and some of the steps that it took: before it, behind it, before the end."""
        steps = self.best.steps
        for idx, step in enumerate(steps):
            if step.op["op"] != "submit":
                continue
            head, rest = steps[:idx], steps[idx + 1 :]
            for taken in range(1, _run_of_steps(rest[-2::-1]) + 1):
                yield self._with_steps((*head, *rest[: -1 - taken], rest[-1]))
            for taken in range(1, _run_of_steps(rest) + 1):
                yield self._with_steps((*head, *rest[taken:]))
                for late in range(1, _run_of_steps(rest[-2 : taken - 1 : -1]) + 1):
                    yield self._with_steps((*head, *rest[taken : -1 - late], rest[-1]))

    def _without_pairs(self) -> Iterator[Candidate]:
        steps = self.best.steps
        if len(steps) <= MAX_PAIRS:
            for last in reversed(range(len(steps))):
                for first in reversed(range(last)):
                    kept = (*steps[:first], *steps[first + 1 : last], *steps[last + 1 :])
                    yield self._with_steps(kept)

    def _plainer_configs(self) -> Iterator[Candidate]:
        config = self.best.config
        if COMPARE in config and COMPARE not in self.fixed:
            yield self._with_config({name: value for name, value in config.items() if name != COMPARE})
        for name, values in _PLAIN_VALUES.items():
            if name in config and name not in self.fixed:
                for value in _plainer(config[name], values):
                    yield self._with_config({**config, name: value})

    def _plainer_prompts(self) -> Iterator[Candidate]:
        """Cut the same positions out of every prompt, then of each; turn tokens into zeros likewise."""
        longest = max((len(step.op["ids"]) for step in self.best.steps if "ids" in step.op), default=0)
        everyone = [idx for idx, step in enumerate(self.best.steps) if step.op.get("ids")]
        groups = [everyone, *([idx] for idx in everyone if len(everyone) > 1)]
        size = longest // 2
        while size:
            for group in groups:
                for start in range(longest - size, -1, -size):
                    yield from self._with_ids(group, _cut_out(start, size))
            size //= 2
        for group in groups:
            yield from self._with_ids(group, lambda ids: (0,) * len(ids))
        for group in groups:
            for position in range(longest):
                yield from self._with_ids(group, _zero_at(position))
        tokens = {token for idx in everyone for token in self.best.steps[idx].op["ids"]}
        for token in sorted(tokens - {0, 1}):
            yield from self._with_ids(everyone, _one_for(token))

    def _plainer_ops(self) -> Iterator[Candidate]:
        """Make every other argument plainer, one at a time."""
        for idx in reversed(range(len(self.best.steps))):
            op = self.best.steps[idx].op
            for plainer in _plainer_arguments(op):
                yield self._with_op(idx, plainer)
        yield from self._renumbered()

    def _renumbered(self) -> Iterator[Candidate]:
        """Number the requests from 0 in order of first mention."""
        uids = dict.fromkeys(step.op["uid"] for step in self.best.steps if "uid" in step.op)
        names = {uid: number for number, uid in enumerate(uids)}
        if any(uid != number for uid, number in names.items()):
            yield self._with_steps(
                tuple(
                    replace(step, op={**step.op, "uid": names[step.op["uid"]]}) if "uid" in step.op else step
                    for step in self.best.steps
                )
            )

    # -- parts of a candidate ----------------------------------------------------------------

    def _with_steps(self, steps: Sequence[Step]) -> Candidate:
        return replace(self.best, steps=tuple(steps))

    def _with_config(self, config: Json) -> Candidate:
        return replace(self.best, config=config)

    def _with_op(self, idx: int, op: Json) -> Candidate:
        steps = list(self.best.steps)
        steps[idx] = replace(
            steps[idx], op=op, maker=steps[idx].maker if op.get("handle") is not None else None
        )
        return self._with_steps(steps)

    def _with_ids(self, group: Sequence[int], change: ChangeIds) -> Iterator[Candidate]:
        steps = list(self.best.steps)
        for idx in group:
            op = steps[idx].op
            ids = change(tuple(op["ids"]))
            if ids:
                steps[idx] = replace(steps[idx], op={**op, "ids": list(ids)})
        if tuple(steps) != self.best.steps:
            yield self._with_steps(steps)


_PLAIN_VALUES: Mapping[str, tuple[Any, ...]] = {
    "streams": ("inline",),
    "overlap": (False,),
    "eos_ids": ([],),
    "token_budget": (64, 16, 8, 4, 2),
    "page_size": (1, 2),
    "num_rows": (1, 2, 3),
    "num_pages": (1, 2, 3, 4, 5, 6, 8),
    "max_seq_len": (2, 3, 4, 6, 8, 12, 16),
}
"""What a value of the configuration may become, the plainest first."""

_DEFAULTS: Json = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 0,
    "stop_ids": [],
    "ignore_eos": False,
}
"""Arguments of a submission that may be left out."""


def _cut_out(start: int, size: int) -> ChangeIds:
    return lambda ids: (*ids[:start], *ids[start + size :])


def _zero_at(position: int) -> ChangeIds:
    return lambda ids: tuple([0 if idx == position else token for idx, token in enumerate(ids)])


def _one_for(old: int) -> ChangeIds:
    return lambda ids: tuple([1 if token == old else token for token in ids])


def _plainer(value: Any, values: Sequence[Any]) -> Iterator[Any]:
    """Yield the values that are plainer than `value`: those listed before it."""
    for plain in values:
        if plain == value:
            return
        if isinstance(value, bool) or not isinstance(value, int) or plain < value or values[0] > values[-1]:
            yield plain


def _plainer_arguments(op: Json) -> Iterator[Json]:
    """Yield the operation with one argument plainer."""
    for name in _DEFAULTS:
        if name in op:
            yield {key: value for key, value in op.items() if key != name}
    if op.get("progress"):
        yield from ({**op, "progress": progress} for progress in _plainer_progress(op["progress"]))
    if op["op"] == "insert" and op.get("handle") is not None:
        yield {**op, "handle": None}
    for name, least in (("max_tokens", 1), ("size", 0), ("drop_slots", 1), ("num_tokens", 1)):
        value = op.get(name)
        if value is not None and value > least:
            yield from (
                {**op, name: less} for less in dict.fromkeys((least, (value + least) // 2, value - 1))
            )


def _plainer_progress(progress: Sequence[int]) -> Iterator[list[int]]:
    yield []
    yield [1]
    yield from (list(progress[:length]) for length in range(1, len(progress)))
    for idx, decision in enumerate(progress):
        if decision:
            yield from ([*progress[:idx], less, *progress[idx + 1 :]] for less in (0, 1) if less < decision)


def _run_of_steps(steps: Sequence[Step]) -> int:
    """Return how many steps of an engine stand at the beginning."""
    count = 0
    while count < len(steps) and steps[count].op["op"] == "step":
        count += 1
    return count
