"""The runner: executes a program on a target, one operation at a time, and judges after each.

What an operation answered is held to the contracts, what the target shows to the invariants, and a
target that claims the oracle's policy to the oracle's decisions: in this order, so that a finding
names the rule before the disagreement. A target that raises is looked at all the same: what its
view breaks is named first, the exception after.

The parts of a level are in `cache_runner.py`, `manager_runner.py` and `engine_runner.py`. Nothing here
draws programs.
Chapter: spec/README.md
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from minisgl_conformance import boundary, targets
from minisgl_conformance.marks import Marks
from minisgl_conformance.targets import MakeTarget
from minisgl_spec import contracts, invariants
from minisgl_spec.errors import ContractError, InvariantError, Violation
from minisgl_spec.trace import Json, Log, Program
from minisgl_spec.views import EngineView

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """A broken rule: where in which program, and what the target looked like.

    program:   as it was given; what the runner did after it, to let the target come to rest, is not in it.
    step_idx:  of the operation that noticed, counted on past `program.ops` where that was in coming to rest.
    blame_idx: of the operation that broke the rule.
    """

    violations: tuple[Violation, ...]
    step_idx: int
    program: Program
    error: str | None  # the target's exception, as Python prints it
    before: str = ""  # drawing, of the operation to blame
    after: str = ""
    blame_idx: int = -1
    why: str = ""  # that one is to blame
    subject: str = ""  # the guilty page, row or request
    biography: tuple[str, ...] = ()  # what became of it, one line per step

    @property
    def rule(self) -> str:
        """The name of the first rule that is broken."""
        return self.violations[0].rule

    @property
    def fact(self) -> str:
        """What broke it, with the numbers."""
        return self.violations[0].fact

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of all rules that are broken, each once, in order."""
        return tuple(dict.fromkeys(violation.rule for violation in self.violations))


@dataclass(frozen=True)
class Result:
    """What running a program gave."""

    program: Program
    log: Log
    finding: Finding | None
    num_operations: int
    num_judged_steps: int  # level cache: operations; level engine: steps
    marks: Marks


class TargetRaised(Exception):
    """The target raised what no operation may raise."""

    def __init__(self, operation: str, error: Exception) -> None:
        super().__init__(operation, error)
        self.operation = operation
        self.error = error


class Runner(ABC):
    """One program on one target, fed operation by operation."""

    level: ClassVar[str]
    view_type: ClassVar[type]

    def __init__(
        self,
        make_target: MakeTarget,
        config: Mapping[str, Any],
        judges: Collection[str] = invariants.JUDGES,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self.make_target = make_target
        self.config: Json = dict(config)
        self.judges = frozenset(judges)
        self.origin: Json = dict(origin or {})
        self.target: Any = make_target(targets.target_config(self.config))
        targets.check_capabilities(self.target, self.level)
        self.is_exact = targets.claims(self.target, targets.EXACT)
        self.has_view = targets.claims(self.target, targets.VIEW)
        self.ops: list[Json] = []
        self.events: list[Json] = []
        self.marks = Marks(self.level)
        self.finding: Finding | None = None
        self.num_judged_steps = 0
        self.num_added = 0  # operations at the end that are the runner's own
        self.view: Any = None  # after the last operation
        self._clean_view: EngineView | None = None  # the last that was judged, if nothing was wrong with it
        self._refused_view: Any = None  # after the operation under way, if it was refused
        self.views: list[Any] = []  # before the first operation, and after each
        self._found: list[Violation] = []
        self._disagreements: list[Violation] = []

    # -- driving -----------------------------------------------------------------------------

    def start(self) -> None:
        """Judge the target as it was made; level by level called at the end of `__init__`."""
        self.view = self._take_view()
        self.views.append(self.view)

    def apply(self, op: Json) -> Finding | None:
        """Run one operation and judge what came of it; return the finding, if there is one.

        Mutates: the target, the model of what it must hold, `ops`, `events` and `marks`.
        Raises:  ContractError if the program itself is wrong.
        """
        before, error = self.view, None
        self._found, self._disagreements, self._refused_view = [], [], None
        self.ops.append(op)
        try:
            self.events.append(self._run(op))
        except TargetRaised as raised:
            error = raised
            self.events.append({"event": op["op"], "raised": type(raised.error).__name__})
        self._judge(error)
        self.views.append(self.view)
        self.num_judged_steps += self._is_step(op)
        violations = (*self._found, *self._disagreements)
        if violations:
            self.finding = self._make_finding(violations, error)
        else:
            self._mark(op, self.events[-1], before)
        return self.finding

    def finish(self) -> Finding | None:
        """Judge what can only be judged at the end of a program."""
        return self.finding

    def result(self) -> Result:
        """Return what the run so far gave; a finding with its blame and biography."""
        if self.finding is not None and self.finding.blame_idx < 0:
            from minisgl_conformance.blame import explain

            self.finding = explain(self, self.finding)
        log = Log(self.level, self.config, tuple(self.events))
        return Result(self.program(), log, self.finding, len(self.ops), self.num_judged_steps, self.marks)

    def given_ops(self) -> list[Json]:
        """Return the operations that were given, without those that let the target come to rest."""
        return self.ops[: len(self.ops) - self.num_added]

    def program(self) -> Program:
        """Return the program so far, with what the runner did itself."""
        return Program(self.level, self.config, tuple(self.ops), self.origin)

    # -- the parts of a level ----------------------------------------------------------------

    @abstractmethod
    def _run(self, op: Json) -> Json:
        """Run an operation, hold its answer to the contracts and the oracle; return its event."""

    @abstractmethod
    def _judge_view(self) -> None:
        """Hold `self.view` to the invariants, and to the oracle's view."""

    @abstractmethod
    def _mark(self, op: Json, event: Json, before: Any) -> None:
        """Count the situations that the operation was in."""

    def _is_step(self, op: Json) -> bool:
        """Say whether an operation counts as a judged step."""
        return True

    # -- shared by the levels ----------------------------------------------------------------

    def _judge(self, raised: TargetRaised | None) -> None:
        try:
            self.view = self._take_view() if self._refused_view is None else self._refused_view
            if self.has_view or raised is None:
                self._judge_view()
        except TargetRaised as error:
            raised = raised or error
        if raised is not None:
            if isinstance(raised.error, InvariantError):
                self._found += [v for v in raised.error.violations if v not in self._found]
            text = f"{type(raised.error).__name__}: {raised.error}"
            self._hold(contracts.steps_complete, raised.operation, text)

    def _violations_of(self, view: EngineView) -> Sequence[Violation]:
        """Judge an engine's view and the cache in it, each only if it is not what was judged before.

        An invariant is a function of its view alone: a view that was clean is clean.
        """
        if view == self._clean_view:
            return ()
        cache: Sequence[Violation] = ()
        if self._clean_view is None or view.cache != self._clean_view.cache:
            cache = invariants.violations(view.cache, self.judges)
        found = (*cache, *invariants.violations_of_part(view, self.judges))
        self._clean_view = None if found else view
        return found

    def _take_view(self) -> Any:
        if not self.has_view:
            return None
        view = self._call("view", self.target.view)
        # A target that claims the oracle's decisions has its views compared with the oracle's.
        is_compared = self.is_exact and isinstance(view, self.view_type)
        return view if is_compared else boundary.picture("view", view, self.view_type)

    def _call(self, operation: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the target; whatever it raises is the target's."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise TargetRaised(operation, error) from error

    def _attempt(self, operation: str, function: Callable[..., T], *args: Any) -> tuple[T | None, str | None]:
        """Call the target where it may refuse; return its answer, or what it says it needs."""
        try:
            return self._call(operation, function, *args), None
        except TargetRaised as raised:
            if isinstance(raised.error, ContractError):
                return None, raised.error.need
            raise

    def _hold(self, promise: Callable[..., Iterator[str]], *args: Any) -> None:
        """Hold an answer to a contract."""
        for fact in promise(*args):
            self._found.append(Violation(promise.__name__, fact))

    def _hold_unchanged(self) -> None:
        """Hold the view after a refused call to the one before; it is the view that is judged, too."""
        if self.view is not None:
            after = self._take_view()
            is_same = after == self.view
            self._refused_view = self.view if is_same else after
            if not is_same:
                self._hold(contracts.refusal_changes_nothing, self.view, after)

    def _compare(self, what: str, found: object, expected: object) -> None:
        """Hold an answer to the oracle's."""
        if found != expected:
            facts = contracts.agrees_with_oracle(what, *_difference(found, expected))
            self._disagreements += [Violation("agrees_with_oracle", fact) for fact in facts]

    def _make_finding(self, violations: Sequence[Violation], raised: TargetRaised | None) -> Finding:
        return Finding(
            violations=tuple(violations),
            step_idx=len(self.ops) - 1,
            program=Program(self.level, self.config, tuple(self.given_ops()), self.origin),
            error=_print_error(raised) if raised is not None else None,
        )


def make_runner(
    level: str,
    make_target: MakeTarget,
    config: Mapping[str, Any],
    judges: Collection[str] = invariants.JUDGES,
    origin: Mapping[str, Any] | None = None,
) -> Runner:
    """Return the runner of a level."""
    from minisgl_conformance.cache_runner import CacheRunner
    from minisgl_conformance.engine_runner import EngineRunner
    from minisgl_conformance.manager_runner import ManagerRunner

    runners: dict[str, type[Runner]] = {
        targets.CACHE: CacheRunner,
        targets.MANAGER: ManagerRunner,
        targets.ENGINE: EngineRunner,
    }
    if level not in runners:
        raise ContractError("make_runner", f"a level of {tuple(runners)}", {"level": repr(level)})
    return runners[level](make_target, config, judges, origin)


def run_program(
    make_target: MakeTarget, program: Program, judges: Collection[str] = invariants.JUDGES
) -> Result:
    """Run a whole program, up to its first finding."""
    runner = make_runner(program.level, make_target, program.config, judges, program.origin)
    for op in program.ops:
        if runner.apply(op) is not None:
            return runner.result()
    runner.finish()
    return runner.result()


def _difference(found: object, expected: object) -> tuple[object, object]:
    """Narrow two unequal values down to where they differ, as far as that can be read."""
    if type(found) is type(expected):
        for name in boundary.field_names(type(found)):
            one, other = getattr(found, name), getattr(expected, name)
            if one != other:
                inner = _difference(one, other)
                return f"{name}: {inner[0]}", inner[1]
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        for idx, (one, other) in enumerate(zip(found, expected, strict=False)):
            if one != other:
                inner = _difference(one, other)
                return f"[{idx}] {inner[0]}", inner[1]
        shared = min(len(found), len(expected))
        return f"[{shared}:] {list(found[shared:])}", list(expected[shared:])
    return found, expected


def _print_error(raised: TargetRaised) -> str:
    """Return the exception and the last frames that led to it."""
    return "".join(traceback.format_exception(raised.error, limit=-4)).rstrip()
