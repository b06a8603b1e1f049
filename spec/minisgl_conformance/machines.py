"""Machines: one Hypothesis state machine per level; a rule is a verb, and each makes one operation.

A machine draws small numbers, turns them into operations and feeds them to a runner, which judges
each at once. Hypothesis explores; what it finds is made small by `reduce.py`, like every finding.

A machine never judges; the `Session` it belongs to is told of every program that ran to its end.
Chapter: spec/README.md
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from minisgl_conformance import programs, targets
from minisgl_conformance.cache_runner import CacheRunner
from minisgl_conformance.engine_runner import EngineRunner
from minisgl_conformance.manager_runner import ManagerRunner
from minisgl_conformance.players import CachePlayer, EnginePlayer, ManagerPlayer
from minisgl_conformance.programs import PromptDraw
from minisgl_conformance.runner import Finding, Result, Runner, make_runner
from minisgl_conformance.targets import MakeTarget
from minisgl_spec.invariants import JUDGES
from minisgl_spec.trace import Json


class FoundError(AssertionError):
    """A program broke a rule."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.rule}: {finding.fact}")
        self.finding = finding


@dataclass
class Session:
    """What the machines of one run share: the target, the judges, and what came of each program."""

    make_target: MakeTarget
    level: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    judges: Collection[str] = JUDGES
    streams: tuple[str, ...] = ("inline",)  # that the target can be built with
    origin: Json = field(default_factory=dict)
    finding: Finding | None = None  # the first
    finished: list[Result] = field(default_factory=list)  # programs, to be taken by the driver

    def found(self, runner: Runner, finding: Finding) -> None:
        """Note the first finding and tell Hypothesis of each."""
        if self.finding is None:
            self.ran(runner)
            self.finding = runner.finding  # with its blame
        raise FoundError(finding)

    def ran(self, runner: Runner) -> None:
        """Note a program that ran to its end, or to the first finding."""
        self.finished.append(runner.result())


class Machine(RuleBasedStateMachine):
    """What the machines of all levels share: one runner, and one operation at a time."""

    session: Session

    def __init__(self) -> None:
        super().__init__()
        self.runner: Runner | None = None
        self.outer_error = sys.exc_info()[1]

    def start_program(self, config: Json) -> Runner:
        """Begin a program."""
        session = self.session
        self.runner = make_runner(session.level, session.make_target, config, session.judges, session.origin)
        return self.runner

    def do(self, op: Json) -> None:
        """Run and judge one operation."""
        assert self.runner is not None
        finding = self.runner.apply(op)
        if finding is not None:
            self.session.found(self.runner, finding)

    def teardown(self) -> None:
        """End the program, unless it was cut short: by a finding, or because Hypothesis gave it up."""
        if self.runner is None or sys.exc_info()[1] is not self.outer_error:
            return
        finding = self.runner.finish()
        if finding is not None:
            self.session.found(self.runner, finding)
        if self.session.finding is None:
            self.session.ran(self.runner)


HANDLES = st.integers(0, 7)
SIZES = st.integers(-4, 20)
CHANCES = st.integers(0, 3)


class CacheMachine(Machine):
    """Match, insert, lock, unlock, evict and reset, in any order."""

    player: CachePlayer

    def begin(self, config: Json) -> None:
        """Begin a program with a configuration."""
        runner = self.start_program(config)
        assert isinstance(runner, CacheRunner)
        self.player = CachePlayer(runner, self.do)

    @rule(prompt=programs.PROMPTS)
    def match(self, prompt: PromptDraw) -> None:
        """See `CachePlayer.match`, and so for every rule."""
        self.player.match(prompt)

    @rule(prompt=programs.PROMPTS)
    def insert(self, prompt: PromptDraw) -> None:
        self.player.insert(prompt)

    @rule(prompt=programs.PROMPTS)
    def insert_and_lock(self, prompt: PromptDraw) -> None:
        self.player.insert_and_lock(prompt)

    @rule(prompt=programs.PROMPTS)
    def serve(self, prompt: PromptDraw) -> None:
        self.player.serve(prompt)

    @precondition(lambda self: self.player.num_handles)
    @rule(handle=HANDLES)
    def lock(self, handle: int) -> None:
        self.player.lock(handle)

    @precondition(lambda self: self.player.locked)
    @rule(handle=HANDLES)
    def unlock(self, handle: int) -> None:
        self.player.unlock(handle)

    @precondition(lambda self: self.player.num_handles)
    @rule(handle=HANDLES)
    def unlock_any(self, handle: int) -> None:
        self.player.unlock_any(handle)

    @rule(size=SIZES)
    def evict(self, size: int) -> None:
        self.player.evict(size)

    @rule(share=st.integers(0, 3))
    def evict_a_share(self, share: int) -> None:
        self.player.evict_a_share(share)

    @rule(prompt=programs.PROMPTS, missing=st.integers(1, 3))
    def insert_too_few(self, prompt: PromptDraw, missing: int) -> None:
        self.player.insert_too_few(prompt, missing)

    @rule()
    def unlock_all(self) -> None:
        self.player.unlock_all()

    @rule(chance=CHANCES)
    def reset(self, chance: int) -> None:
        self.player.reset(chance)


class ManagerMachine(Machine):
    """Start, extend, commit, finish and abort, in any order."""

    player: ManagerPlayer

    def begin(self, config: Json) -> None:
        """Begin a program with a configuration."""
        runner = self.start_program(config)
        assert isinstance(runner, ManagerRunner)
        self.player = ManagerPlayer(runner, self.do)

    @rule(prompt=programs.PROMPTS)
    def start(self, prompt: PromptDraw) -> None:
        """See `ManagerPlayer.start`, and so for every rule."""
        self.player.start(prompt)

    @rule(prompt=programs.PROMPTS, num_tokens=st.integers(1, 40))
    def serve(self, prompt: PromptDraw, num_tokens: int) -> None:
        self.player.serve(prompt, num_tokens)

    @rule(prompt=programs.PROMPTS)
    def serve_twins(self, prompt: PromptDraw) -> None:
        self.player.serve_twins(prompt)

    @rule(which=st.integers(0, 3), num_tokens=st.integers(1, 40))
    def extend(self, which: int, num_tokens: int) -> None:
        self.player.extend(which, num_tokens)

    @rule(name=st.sampled_from(("commit", "finish", "abort")), which=st.integers(0, 3))
    def end(self, name: str, which: int) -> None:
        self.player.end(name, which)

    @rule(kind=st.integers(0, 8), prompt=programs.PROMPTS)
    def mistake(self, kind: int, prompt: PromptDraw) -> None:
        self.player.mistake(kind, prompt)


class EngineMachine(Machine):
    """Submit, abort, step and reset, in any order."""

    player: EnginePlayer

    def begin(self, config: Json) -> None:
        """Begin a program with a configuration."""
        runner = self.start_program(config)
        assert isinstance(runner, EngineRunner)
        self.player = EnginePlayer(runner, self.do)

    @rule(
        prompt=programs.PROMPTS,
        max_tokens=st.sampled_from(programs.MAX_TOKENS),
        option=st.integers(0, programs.NUM_OPTIONS - 1),
    )
    def submit(self, prompt: PromptDraw, max_tokens: int, option: int) -> None:
        """See `EnginePlayer.submit`, and so for every rule."""
        self.player.submit(prompt, max_tokens, option)

    @rule(prompt=programs.PROMPTS, max_tokens=st.sampled_from(programs.MAX_TOKENS))
    def submit_twins(self, prompt: PromptDraw, max_tokens: int) -> None:
        self.player.submit_twins(prompt, max_tokens)

    @rule(prompt=programs.PROMPTS, which=st.integers(0, 4))
    def submit_under_an_old_uid(self, prompt: PromptDraw, which: int) -> None:
        self.player.submit_under_an_old_uid(prompt, which)

    @rule(prompt=programs.PROMPTS, kind=st.integers(0, programs.NUM_BAD_SUBMISSIONS - 1))
    def submit_badly(self, prompt: PromptDraw, kind: int) -> None:
        self.player.submit_badly(prompt, kind)

    @rule(progress=programs.PROGRESS)
    def step(self, progress: list[int]) -> None:
        self.player.steps(1, progress)

    @rule(num_steps=st.integers(1, 4), progress=programs.PROGRESS)
    def steps(self, num_steps: int, progress: list[int]) -> None:
        self.player.steps(num_steps, progress)

    @rule(num_steps=st.integers(1, 6))
    def steps_late(self, num_steps: int) -> None:
        self.player.steps(num_steps, [])

    @rule(which=st.integers(0, 7))
    def abort(self, which: int) -> None:
        self.player.abort(which)

    @rule(which=st.integers(0, 3))
    def abort_running(self, which: int) -> None:
        self.player.abort_running(which)

    @rule(prompt=programs.PROMPTS, num_steps=st.integers(0, 3), progress=programs.PROGRESS)
    def submit_and_abort(self, prompt: PromptDraw, num_steps: int, progress: list[int]) -> None:
        self.player.submit_and_abort(prompt, num_steps, progress)

    @rule(chance=CHANCES)
    def reset(self, chance: int) -> None:
        self.player.reset(chance)


def make_machine(session: Session) -> type[Machine]:
    """Return the machine class of a session: its level, with the configurations it may draw."""
    if session.level == targets.CACHE:
        configs = programs.cache_configs(session.fixed)

        class OneCacheMachine(CacheMachine):
            @initialize(config=configs)
            def configure(self, config: Json) -> None:
                self.begin(config)

        OneCacheMachine.session = session
        return OneCacheMachine

    if session.level == targets.MANAGER:
        configs = programs.manager_configs(session.fixed)

        class OneManagerMachine(ManagerMachine):
            @initialize(config=configs)
            def configure(self, config: Json) -> None:
                self.begin(config)

        OneManagerMachine.session = session
        return OneManagerMachine

    configs = programs.engine_configs(session.fixed, session.streams)

    class OneEngineMachine(EngineMachine):
        @initialize(config=configs)
        def configure(self, config: Json) -> None:
            self.begin(config)

    OneEngineMachine.session = session
    return OneEngineMachine
