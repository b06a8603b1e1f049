"""Players: what a driver can do with a cache, a manager or an engine, as verbs of one operation or a few.

A player holds what the next operation depends on (earlier prompts, handles, uids) and hands every
operation to `do`, which runs and judges it. Hypothesis' machines and the swarm driver draw the numbers
and call the same verbs, so both speak the same programs.

A player never draws and never judges.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minisgl_conformance import programs
from minisgl_conformance.cache_runner import CacheRunner
from minisgl_conformance.engine_runner import EngineRunner
from minisgl_conformance.manager_runner import ManagerRunner
from minisgl_conformance.programs import PromptDraw
from minisgl_spec.trace import Json
from minisgl_spec.units import div_ceil

Do = Callable[[Json], None]
"""Runs and judges one operation; raises to end the program."""


class CachePlayer:
    """Match, insert, lock, unlock, evict and reset."""

    def __init__(self, runner: CacheRunner, do: Do) -> None:
        self.runner = runner
        self.do = do
        self.page_size = runner.page_size
        self.limit = min(runner.num_pages, 6) * self.page_size + 1
        self.num_handles = 0
        self.prompts: list[tuple[int, ...]] = []
        self.locked: list[int] = []  # handles, as far as a lock was asked for

    def prompt(self, draw: PromptDraw) -> list[int]:
        """Make a prompt and remember it."""
        ids = programs.make_prompt(draw, self.prompts, self.page_size, self.limit)
        self.prompts.append(ids)
        return list(ids)

    def match(self, prompt: PromptDraw) -> None:
        """Match a prompt."""
        self._handled({"op": "match", "ids": self.prompt(prompt)})

    def insert(self, prompt: PromptDraw) -> None:
        """Insert a prompt with pages of its own."""
        self._handled({"op": "insert", "ids": self.prompt(prompt), "handle": None})

    def insert_and_lock(self, prompt: PromptDraw) -> None:
        """Insert a prompt and lock what is cached of it."""
        made = self._handled({"op": "insert", "ids": self.prompt(prompt), "handle": None})
        if made >= 0:
            self._lock(made)

    def serve(self, prompt: PromptDraw) -> None:
        """Do as a request does: match, lock, evict what is short, insert behind it, lock that instead."""
        ids = self.prompt(prompt)
        found = self._handled({"op": "match", "ids": ids[:-1]})
        self.do({"op": "lock", "handle": found})
        self._evict_for(len(ids) - self.runner.events[-2]["prefix_len"])
        made = self._handled({"op": "insert", "ids": ids, "handle": found})
        if made >= 0:
            self._lock(made)
        self.do({"op": "unlock", "handle": found})

    def lock(self, handle: int) -> None:
        """Lock a recent handle, whatever became of it."""
        if self.num_handles:
            self._lock(max(0, self.num_handles - 1 - handle))

    def unlock(self, handle: int) -> None:
        """Unlock a handle that a lock was asked for."""
        if self.locked:
            self.do({"op": "unlock", "handle": self.locked.pop(handle % len(self.locked))})

    def unlock_any(self, handle: int) -> None:
        """Unlock a recent handle, locked or not."""
        if self.num_handles:
            self.do({"op": "unlock", "handle": max(0, self.num_handles - 1 - handle)})

    def evict(self, size: int) -> None:
        """Evict some slots, or ask for more than there are."""
        self.do({"op": "evict", "size": size})

    def evict_a_share(self, share: int) -> None:
        """Evict a quarter of what may be evicted, or all of it."""
        evictable = self.runner.evictable_size()
        self.do({"op": "evict", "size": div_ceil(evictable * (share + 1), 4)})

    def insert_too_few(self, prompt: PromptDraw, missing: int) -> None:
        """Insert a prompt with a slot missing."""
        ids = self.prompt(prompt)
        self.do({"op": "insert", "ids": ids, "handle": None, "drop_slots": min(missing, len(ids))})

    def unlock_all(self) -> None:
        """Unlock whatever a lock was asked for."""
        while self.locked:
            self.do({"op": "unlock", "handle": self.locked.pop()})

    def reset(self, chance: int) -> None:
        """Empty the cache, one time in four."""
        if chance == 3:
            self.do({"op": "reset"})

    def _handled(self, op: Json) -> int:
        """Run an operation that makes a handle; return the handle's number."""
        self.do(op)
        made: int | None = self.runner.events[-1].get("handle")
        if made is None:
            return -1
        self.num_handles = made + 1
        return made

    def _evict_for(self, num_tokens: int) -> None:
        """Evict what the free list is short of, if it can be had."""
        short = div_ceil(num_tokens, self.page_size) - len(self.runner.free_pages)
        if 0 < short * self.page_size <= self.runner.evictable_size():
            self.do({"op": "evict", "size": short * self.page_size})

    def _lock(self, handle: int) -> None:
        self.do({"op": "lock", "handle": handle})
        self.locked.append(handle)


class ManagerPlayer:
    """Start, extend, commit, finish and abort."""

    def __init__(self, runner: ManagerRunner, do: Do) -> None:
        self.runner = runner
        self.do = do
        self.uid = 0
        self.prompts: list[tuple[int, ...]] = []
        config = runner.config
        self.page_size: int = config["page_size"]
        self.limit = min(config["max_seq_len"], config["num_pages"] * self.page_size)

    def start(self, prompt: PromptDraw) -> int:
        """Start a sequence under the next uid; return the uid."""
        ids = programs.make_prompt(prompt, self.prompts, self.page_size, self.limit)
        self.prompts.append(ids)
        self.uid += 1
        self.do({"op": "start", "uid": self.uid - 1, "ids": list(ids)})
        return self.uid - 1

    def serve(self, prompt: PromptDraw, num_tokens: int) -> None:
        """Start a sequence, extend it and commit."""
        uid = self.start(prompt)
        if uid in self.runner.live:
            self._extend(uid, num_tokens)
            self.do({"op": "commit", "uid": uid})

    def serve_twins(self, prompt: PromptDraw) -> None:
        """Compute one sequence twice at the same time, so that one finds the other's pages."""
        first = self.start(prompt)
        self.do({"op": "start", "uid": self.uid, "ids": list(self.prompts[-1])})
        self.uid += 1
        for uid in (first, self.uid - 1):
            if uid in self.runner.live:
                self._extend(uid, self.limit)
        for uid in (first, self.uid - 1):
            if uid in self.runner.live:
                self.do({"op": "commit", "uid": uid})

    def extend(self, which: int, num_tokens: int) -> None:
        """Extend a live sequence, as far as it goes."""
        uid = self._live(which)
        if uid is not None:
            self._extend(uid, num_tokens)

    def end(self, name: str, which: int) -> None:
        """Commit, finish or abort a live sequence."""
        uid = self._live(which)
        if uid is not None:
            self.do({"op": name, "uid": uid})

    def mistake(self, kind: int, prompt: PromptDraw) -> None:
        """Do what has to be refused."""
        live = self._live(0)
        ids = list(programs.make_prompt(prompt, self.prompts, self.page_size, self.limit))
        mistakes: list[Json] = [
            {"op": "start", "uid": self.uid, "ids": []},
            {"op": "start", "uid": self.uid, "ids": [0] * (self.limit + 1)},
            {"op": "extend", "uid": self.uid, "num_tokens": 1},
            {"op": "commit", "uid": self.uid},
            {"op": "finish", "uid": self.uid},
            {"op": "abort", "uid": self.uid},
        ]
        if live is not None:
            mistakes += [
                {"op": "start", "uid": live, "ids": ids},
                {"op": "extend", "uid": live, "num_tokens": 0},
                {"op": "extend", "uid": live, "num_tokens": self.limit + 1},
            ]
        self.do(mistakes[kind % len(mistakes)])

    def _extend(self, uid: int, num_tokens: int) -> None:
        sequence = self.runner.live[uid]
        left = len(sequence.ids) - sequence.written_len
        if left:
            self.do({"op": "extend", "uid": uid, "num_tokens": 1 + (num_tokens - 1) % left})

    def _live(self, which: int) -> int | None:
        live = list(self.runner.live)
        return live[-1 - which % len(live)] if live else None


class EnginePlayer:
    """Submit, abort, step and reset."""

    def __init__(self, runner: EngineRunner, do: Do) -> None:
        self.runner = runner
        self.do = do
        self.config = runner.config
        self.is_simulated = self.config.get("streams") == "simulated"
        self.uid = 0
        self.prompts: list[tuple[int, ...]] = []
        capacity = self.config["num_pages"] * self.config["page_size"]
        self.limit = max(1, min(self.config["max_seq_len"] - 1, capacity))

    def submit(self, prompt: PromptDraw, max_tokens: int, option: int) -> None:
        """Submit a prompt, new or made from an earlier one."""
        self._submit(self._submission(prompt, max_tokens, option))

    def submit_twins(self, prompt: PromptDraw, max_tokens: int) -> None:
        """Submit one prompt twice, so that one of them computes what the other caches."""
        op = self._submission(prompt, max_tokens, 0)
        self._submit(op)
        self.uid += 1
        self._submit({**op, "uid": self.uid - 1})

    def submit_under_an_old_uid(self, prompt: PromptDraw, which: int) -> None:
        """Submit under a uid that was used before, whatever became of that request."""
        op = self._submission(prompt, 3, 0)
        self.uid -= 1
        self._submit({**op, "uid": max(0, self.uid - 1 - which)})

    def submit_badly(self, prompt: PromptDraw, kind: int) -> None:
        """Submit what has to be refused."""
        op = self._submission(prompt, 2, 0)
        self.do(programs.make_bad_submission(kind, op, self.config))

    def steps(self, num_steps: int, progress: Sequence[int]) -> None:
        """Run some steps, the streams equally far in each."""
        for _ in range(num_steps):
            self.do({"op": "step", "progress": list(progress) if self.is_simulated else []})

    def abort(self, which: int) -> None:
        """Abort a recent request, or one that never was."""
        self.do({"op": "abort", "uid": max(0, self.uid - 1 - which) if which < 6 else self.uid + which})

    def abort_running(self, which: int) -> None:
        """Abort a request that holds a row: between two steps, in flight, or ended and still in flight."""
        view = self.runner.view
        running = [r for r in view.requests if r.row is not None] if view is not None else []
        if running:
            self.do({"op": "abort", "uid": running[which % len(running)].uid})

    def submit_and_abort(self, prompt: PromptDraw, num_steps: int, progress: Sequence[int]) -> None:
        """Submit a prompt, run a few steps, and abort it."""
        op = self._submission(prompt, 5, 0)
        self._submit(op)
        self.steps(num_steps, progress)
        self.do({"op": "abort", "uid": op["uid"]})

    def reset(self, chance: int) -> None:
        """Empty the cache, one time in four."""
        if chance == 3:
            self.do({"op": "reset"})

    def _submission(self, prompt: PromptDraw, max_tokens: int, option: int) -> Json:
        """Make a submission under the next uid."""
        earlier = self.prompts
        if prompt[0] == programs.CONTINUED:
            told = [(*r.submission.ids, *r.outputs) for r in self.runner.requests if r.outputs]
            earlier = told or earlier
        ids = programs.make_prompt(prompt, earlier, self.config["page_size"], self.limit)
        self.uid += 1
        op = {"op": "submit", "uid": self.uid - 1, "ids": list(ids), "max_tokens": max_tokens}
        options = programs.make_options(option, self.config["vocab_size"])
        if not self.runner.samples:
            options = {name: value for name, value in options.items() if name not in programs.SAMPLING}
        return {**op, **options}

    def _submit(self, op: Json) -> None:
        """Submit, and remember the prompt."""
        self.do(op)
        self.prompts.append(tuple(op["ids"]))
