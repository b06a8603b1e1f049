"""Deliberately wrong engines: each is the oracle's scheduler with one mistake, named after it.

They claim their view and their inner events, not the oracle's decisions.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minisgl_conformance.adapters.oracle import OracleEngine
from minisgl_conformance.targets import EVENTS, RESET, VIEW
from minisgl_spec.errors import Refusal
from minisgl_spec.messages import Reply, Sampling
from minisgl_spec.numerics import digest_next_token
from minisgl_spec.trace import Json
from minisgl_spec.views import EngineView


class Engine(OracleEngine):
    """The oracle's scheduler as an engine of somebody else's."""

    capabilities = frozenset((VIEW, EVENTS, RESET))


class BlindEngine(OracleEngine):
    """The same, seen from outside only."""

    capabilities = frozenset[str]()


class RepliesTwice(BlindEngine):
    """The terminal reply is sent twice."""

    def step(self) -> Sequence[Reply]:
        """Repeat the last reply if it is a terminal one."""
        replies = list(super().step())
        return [*replies, *(reply for reply in replies[-1:] if reply.finish_reason)]


class EndsEarly(BlindEngine):
    """A request is told to have ended with its first token."""

    def step(self) -> Sequence[Reply]:
        """Call every token the last one."""
        return [replace(reply, finish_reason=reply.finish_reason or "length") for reply in super().step()]


class OffByOneToken(BlindEngine):
    """Another token is told than the model generates."""

    def step(self) -> Sequence[Reply]:
        """Tell the next token of the vocabulary."""
        replies = super().step()
        return [
            reply if reply.token is None else replace(reply, token=(reply.token + 1) % self.config.vocab_size)
            for reply in replies
        ]


class LosesRequests(BlindEngine):
    """A request whose prompt has two tokens is accepted and forgotten."""

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.lost: set[int] = set()

    def submit(self, uid: int, ids: Sequence[int], max_tokens: int, **params: object) -> Refusal | None:
        """Forget it."""
        if uid in self.lost:
            return Refusal("duplicate_uid", uid, "one request per uid at a time")
        refusal = super().submit(uid, ids, max_tokens, **params)  # type: ignore[arg-type]
        if refusal is None and len(ids) == 2:
            self.scheduler.waiting.pop()
            self.lost.add(uid)
        return refusal

    def abort(self, uid: int) -> Refusal | None:
        """Accept the abort of a lost request, once."""
        if uid not in self.lost:
            return super().abort(uid)
        self.lost.remove(uid)
        return None


class AcceptsAnything(BlindEngine):
    """An empty prompt is accepted."""

    def submit(self, uid: int, ids: Sequence[int], max_tokens: int, **params: object) -> Refusal | None:
        """Accept it."""
        refusal = super().submit(uid, ids, max_tokens, **params)  # type: ignore[arg-type]
        return None if refusal is not None and refusal.reason == "empty_prompt" else refusal


class RaisesOnEviction(Engine):
    """A step that evicts raises afterwards."""

    def step(self) -> Sequence[Reply]:
        """Raise."""
        replies = super().step()
        if any(event["do"] == "evict" for event in self.scheduler.inner):
            raise RuntimeError("Cannot evict")
        return replies


class LosesPages(Engine):
    """The view lacks the last free page."""

    def view(self) -> EngineView:
        """Leave a page out."""
        view = super().view()
        return replace(view, free_pages=view.free_pages[:-1])


class ReleasesTwice(Engine):
    """A release is told twice."""

    def last_event(self) -> Sequence[Json]:
        """Repeat releases."""
        events = super().last_event()
        return [*events, *(event for event in events if event["do"] == "release")]


class Variable(BlindEngine):
    """What it generates depends on the configuration."""

    key = ""
    values: tuple[object, ...] = ()

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.shift = int(config[self.key] in self.values)

    def _digest_token(self, ids: tuple[int, ...], sampling: Sampling, output_idx: int, uid: int) -> int:
        return self.next_token(ids, sampling, output_idx)[0]

    def next_token(self, ids: Sequence[int], sampling: Sampling, output_idx: int) -> tuple[int, ...]:
        """Shift the token by what the configuration says."""
        token = digest_next_token(tuple(ids), sampling, output_idx, self.config.vocab_size)
        return ((token + self.shift) % self.config.vocab_size,)


class CachingMatters(Variable):
    """Without a cache it generates something else."""

    key, values = "cache", ("naive",)


class ChunkingMatters(Variable):
    """With a large budget it generates something else."""

    key, values = "token_budget", (64, 4096)


class OverlapMatters(Variable):
    """In the overlap loop it generates something else."""

    key, values = "overlap", (True,)


WRONG: dict[type[OracleEngine], str] = {
    RepliesTwice: "replied_once",
    EndsEarly: "ends_with_its_last_token",
    OffByOneToken: "tokens_are_the_models",
    LosesRequests: "requests_finish",
    AcceptsAnything: "mistakes_are_refused",
    RaisesOnEviction: "steps_complete",
    LosesPages: "pages_partitioned",
    ReleasesTwice: "released_once",
    CachingMatters: "caching_changes_no_token",
    ChunkingMatters: "chunking_changes_no_token",
    OverlapMatters: "overlap_changes_no_token",
}
"""Each wrong engine, and the rule that has to be named."""
