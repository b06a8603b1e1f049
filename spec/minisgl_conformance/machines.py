"""Machines: one Hypothesis state machine per level; a rule is a verb, and each makes one operation.

A machine draws small numbers, turns them into operations and feeds them to a runner, which judges
each at once: Hypothesis explores, and shrinks what it finds. While it shrinks, only the rule that
was found first counts, so that a finding keeps its name.

A machine never judges; the `Session` it belongs to is told of every program that ran to its end.
Chapter: spec/README.md
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from minisgl_conformance import programs, targets
from minisgl_conformance.cache_runner import CacheRunner
from minisgl_conformance.engine_runner import EngineRunner
from minisgl_conformance.programs import PromptDraw
from minisgl_conformance.runner import Finding, Result, Runner, make_runner
from minisgl_conformance.targets import MakeTarget
from minisgl_spec.invariants import JUDGES
from minisgl_spec.trace import Json
from minisgl_spec.units import div_ceil


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
    smallest: Finding | None = None  # of the same rule, as far as it is shrunk
    finished: list[Result] = field(default_factory=list)  # programs, to be taken by the driver

    def found(self, runner: Runner, finding: Finding) -> None:
        """Note a finding and tell Hypothesis; of several rules only the first counts."""
        if self.finding is None:
            self.finding = finding
            self.ran(runner)
        if finding.rule != self.finding.rule:
            reject()
        if self.smallest is None or len(finding.program.ops) <= len(self.smallest.program.ops):
            self.smallest = finding
        raise FoundError(finding)

    def ran(self, runner: Runner) -> None:
        """Note a program that ran to its end, or to the first finding."""
        self.finished.append(runner.result())


class Machine(RuleBasedStateMachine):
    """What the machines of both levels share: one runner, and one operation at a time."""

    session: Session

    def __init__(self) -> None:
        super().__init__()
        self.runner: Runner | None = None
        self.outer_error = sys.exc_info()[1]

    def start(self, config: Json) -> Runner:
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

    prompts: list[tuple[int, ...]]
    page_size: int

    def begin(self, config: Json) -> None:
        """Begin a program with a configuration."""
        self.start(config)
        self.page_size = config["page_size"]
        self.limit = min(config["num_pages"], 6) * self.page_size + 1
        self.num_handles = 0
        self.prompts = []
        self.locked: list[int] = []  # handles, as far as a lock was asked for

    def prompt(self, draw: PromptDraw) -> tuple[int, ...]:
        """Make a prompt and remember it."""
        ids = programs.make_prompt(draw, self.prompts, self.page_size, self.limit)
        self.prompts.append(ids)
        return ids

    def handled(self, op: Json) -> int:
        """Run an operation that makes a handle; return the handle's number."""
        self.do(op)
        made: int | None = self.cache_runner.events[-1].get("handle")
        if made is None:
            return -1
        self.num_handles = made + 1
        return made

    @property
    def cache_runner(self) -> CacheRunner:
        """The runner of this level."""
        assert isinstance(self.runner, CacheRunner)
        return self.runner

    def evict_for(self, num_tokens: int) -> None:
        """Evict what the free list is short of, if it can be had."""
        runner = self.cache_runner
        short = div_ceil(num_tokens, self.page_size) - len(runner.free_pages)
        if 0 < short * self.page_size <= runner.cached.sizes()[0]:
            self.do({"op": "evict", "size": short * self.page_size})

    def lock_it(self, handle: int) -> None:
        """Lock a handle."""
        self.do({"op": "lock", "handle": handle})
        self.locked.append(handle)

    @rule(prompt=programs.PROMPTS)
    def match(self, prompt: PromptDraw) -> None:
        """Match a prompt."""
        self.handled({"op": "match", "ids": list(self.prompt(prompt))})

    @rule(prompt=programs.PROMPTS)
    def insert(self, prompt: PromptDraw) -> None:
        """Insert a prompt with pages of its own."""
        self.handled({"op": "insert", "ids": list(self.prompt(prompt)), "handle": None})

    @rule(prompt=programs.PROMPTS)
    def insert_and_lock(self, prompt: PromptDraw) -> None:
        """Insert a prompt and lock what is cached of it."""
        made = self.handled({"op": "insert", "ids": list(self.prompt(prompt)), "handle": None})
        if made >= 0:
            self.lock_it(made)

    @rule(prompt=programs.PROMPTS)
    def serve(self, prompt: PromptDraw) -> None:
        """Do as a request does: match, lock, evict what is short, insert behind it, lock that instead."""
        ids = list(self.prompt(prompt))
        found = self.handled({"op": "match", "ids": ids[:-1]})
        self.do({"op": "lock", "handle": found})
        self.evict_for(len(ids) - self.cache_runner.events[-2]["prefix_len"])
        made = self.handled({"op": "insert", "ids": ids, "handle": found})
        if made >= 0:
            self.lock_it(made)
        self.do({"op": "unlock", "handle": found})

    @precondition(lambda self: self.num_handles)
    @rule(handle=HANDLES)
    def lock(self, handle: int) -> None:
        """Lock a recent handle, whatever became of it."""
        self.lock_it(max(0, self.num_handles - 1 - handle))

    @precondition(lambda self: self.locked)
    @rule(handle=HANDLES)
    def unlock(self, handle: int) -> None:
        """Unlock a handle that a lock was asked for."""
        self.do({"op": "unlock", "handle": self.locked.pop(handle % len(self.locked))})

    @precondition(lambda self: self.num_handles)
    @rule(handle=HANDLES)
    def unlock_any(self, handle: int) -> None:
        """Unlock a recent handle, locked or not."""
        self.do({"op": "unlock", "handle": max(0, self.num_handles - 1 - handle)})

    @rule(size=SIZES)
    def evict(self, size: int) -> None:
        """Evict some slots, or ask for more than there are."""
        self.do({"op": "evict", "size": size})

    @rule(share=st.integers(0, 3))
    def evict_a_share(self, share: int) -> None:
        """Evict a quarter of what may be evicted, or all of it."""
        evictable = self.cache_runner.cached.sizes()[0]
        self.do({"op": "evict", "size": div_ceil(evictable * (share + 1), 4)})

    @rule(prompt=programs.PROMPTS, missing=st.integers(1, 3))
    def insert_too_few(self, prompt: PromptDraw, missing: int) -> None:
        """Insert a prompt with a slot missing."""
        ids = list(self.prompt(prompt))
        self.do({"op": "insert", "ids": ids, "handle": None, "drop_slots": min(missing, len(ids))})

    @rule()
    def unlock_all(self) -> None:
        """Unlock whatever a lock was asked for."""
        while self.locked:
            self.do({"op": "unlock", "handle": self.locked.pop()})

    @rule(chance=CHANCES)
    def reset(self, chance: int) -> None:
        """Empty the cache, one time in four."""
        if chance == 3:
            self.do({"op": "reset"})


class EngineMachine(Machine):
    """Submit, abort, step and reset, in any order."""

    def begin(self, config: Json) -> None:
        """Begin a program with a configuration."""
        self.start(config)
        self.config = config
        self.is_simulated = config["streams"] == "simulated"
        self.uid = 0
        self.prompts: list[tuple[int, ...]] = []
        capacity = config["num_pages"] * config["page_size"]
        self.limit = max(1, min(config["max_seq_len"] - 1, capacity))

    def submission(self, prompt: PromptDraw, max_tokens: int, option: int) -> Json:
        """Make a submission under the next uid."""
        assert isinstance(self.runner, EngineRunner)
        earlier = self.prompts
        if prompt[0] == programs.CONTINUED:
            told = [(*r.submission.ids, *r.outputs) for r in self.runner.requests if r.outputs]
            earlier = told or earlier
        ids = programs.make_prompt(prompt, earlier, self.config["page_size"], self.limit)
        self.uid += 1
        op = {"op": "submit", "uid": self.uid - 1, "ids": list(ids), "max_tokens": max_tokens}
        return {**op, **programs.make_options(option, self.config["vocab_size"])}

    def submit_it(self, op: Json) -> None:
        """Submit, and remember the prompt."""
        self.do(op)
        self.prompts.append(tuple(op["ids"]))

    @rule(
        prompt=programs.PROMPTS,
        max_tokens=st.sampled_from(programs.MAX_TOKENS),
        option=st.integers(0, programs.NUM_OPTIONS - 1),
    )
    def submit(self, prompt: PromptDraw, max_tokens: int, option: int) -> None:
        """Submit a prompt, new or made from an earlier one."""
        self.submit_it(self.submission(prompt, max_tokens, option))

    @rule(prompt=programs.PROMPTS, max_tokens=st.sampled_from(programs.MAX_TOKENS))
    def submit_twins(self, prompt: PromptDraw, max_tokens: int) -> None:
        """Submit one prompt twice, so that one of them computes what the other caches."""
        op = self.submission(prompt, max_tokens, 0)
        self.submit_it(op)
        self.uid += 1
        self.submit_it({**op, "uid": self.uid - 1})

    @rule(prompt=programs.PROMPTS, which=st.integers(0, 4))
    def submit_under_an_old_uid(self, prompt: PromptDraw, which: int) -> None:
        """Submit under a uid that was used before, whatever became of that request."""
        op = self.submission(prompt, 3, 0)
        self.uid -= 1
        self.submit_it({**op, "uid": max(0, self.uid - 1 - which)})

    @rule(prompt=programs.PROMPTS, kind=st.integers(0, programs.NUM_BAD_SUBMISSIONS - 1))
    def submit_badly(self, prompt: PromptDraw, kind: int) -> None:
        """Submit what has to be refused."""
        op = self.submission(prompt, 2, 0)
        self.do(programs.make_bad_submission(kind, op, self.config))

    @rule(progress=programs.PROGRESS)
    def step(self, progress: list[int]) -> None:
        """Run a step."""
        self.run(1, progress)

    @rule(num_steps=st.integers(1, 4), progress=programs.PROGRESS)
    def steps(self, num_steps: int, progress: list[int]) -> None:
        """Run some steps, the streams equally far in each."""
        self.run(num_steps, progress)

    @rule(num_steps=st.integers(1, 6))
    def steps_late(self, num_steps: int) -> None:
        """Run some steps in which the streams do only what they must."""
        self.run(num_steps, [])

    def run(self, num_steps: int, progress: list[int]) -> None:
        """Run steps."""
        for _ in range(num_steps):
            self.do({"op": "step", "progress": progress if self.is_simulated else []})

    @rule(which=st.integers(0, 7))
    def abort(self, which: int) -> None:
        """Abort a recent request, or one that never was."""
        self.do({"op": "abort", "uid": max(0, self.uid - 1 - which) if which < 6 else self.uid + which})

    @rule(which=st.integers(0, 3))
    def abort_running(self, which: int) -> None:
        """Abort a request that holds a row: between two steps, in flight, or ended and still in flight."""
        view = self.runner.view if self.runner is not None else None
        running = (
            [request for request in view.requests if request.row is not None] if view is not None else []
        )
        if running:
            self.do({"op": "abort", "uid": running[which % len(running)].uid})

    @rule(prompt=programs.PROMPTS, num_steps=st.integers(0, 3), progress=programs.PROGRESS)
    def submit_and_abort(self, prompt: PromptDraw, num_steps: int, progress: list[int]) -> None:
        """Submit a prompt, run a few steps, and abort it."""
        op = self.submission(prompt, 5, 0)
        self.submit_it(op)
        self.run(num_steps, progress)
        self.do({"op": "abort", "uid": op["uid"]})

    @rule(chance=CHANCES)
    def reset(self, chance: int) -> None:
        """Empty the cache, one time in four."""
        if chance == 3:
            self.do({"op": "reset"})


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

    configs = programs.engine_configs(session.fixed, session.streams)

    class OneEngineMachine(EngineMachine):
        @initialize(config=configs)
        def configure(self, config: Json) -> None:
            self.begin(config)

    OneEngineMachine.session = session
    return OneEngineMachine
