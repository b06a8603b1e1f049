"""Deliberately wrong engines, each the oracle's scheduler with one mistake; and right ones that differ.

They claim their view and their inner events, not the oracle's decisions.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minisgl_conformance.adapters.oracle import OracleEngine
from minisgl_conformance.targets import EVENTS, NAIVE, REFUSALS, RESET, SAMPLING, VIEW
from minisgl_spec.errors import Refusal
from minisgl_spec.messages import Reply, Sampling
from minisgl_spec.numerics import digest_next_token
from minisgl_spec.requests import Submission, clamped_max_tokens, pages_for, refusal_of
from minisgl_spec.trace import Json
from minisgl_spec.views import EngineView


class Engine(OracleEngine):
    """The oracle's scheduler as an engine of somebody else's."""

    capabilities = frozenset((VIEW, EVENTS, RESET, REFUSALS, SAMPLING, NAIVE))


class BlindEngine(OracleEngine):
    """The same, seen from outside only."""

    capabilities = frozenset((REFUSALS, SAMPLING, NAIVE))


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
        return view._replace(free_pages=view.free_pages[:-1])


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


# -- different, and right ----------------------------------------------------------------------


class StoresTheLastToken(BlindEngine):
    """The last token is stored, too, so a request may need one page more."""

    def submit(self, uid: int, ids: Sequence[int], max_tokens: int, **params: Any) -> Refusal | None:
        """Refuse what does not fit by that count."""
        asked = Submission(uid, tuple(ids), max_tokens)
        if refusal_of(asked, self.config) is None:
            need = pages_for(len(ids), clamped_max_tokens(asked, self.config) + 1, self.config.page_size)
            if need > self.config.num_pages:
                return Refusal("larger_than_pool", need, self.config.num_pages)
        return super().submit(uid, ids, max_tokens, **params)


class AbortsQuietly(BlindEngine):
    """An abort of nobody does nothing and says nothing; mistakes are somebody else's business."""

    capabilities = frozenset((SAMPLING, NAIVE))

    def abort(self, uid: int) -> Refusal | None:
        """Abort if there is anything to abort."""
        super().abort(uid)
        return None


class NeverMindsMistakes(BlindEngine):
    """What has to be refused breaks it; nobody sends it that."""

    capabilities = frozenset((SAMPLING, NAIVE))

    def submit(self, uid: int, ids: Sequence[int], max_tokens: int, **params: Any) -> Refusal | None:
        """Fall over a mistake."""
        refusal = super().submit(uid, ids, max_tokens, **params)
        assert refusal is None, refusal
        return refusal


class CachesAlways(BlindEngine):
    """There is no naive cache."""

    capabilities = frozenset((REFUSALS, SAMPLING))

    def __init__(self, config: Json) -> None:
        if config["cache"] != "radix":
            raise ValueError("there is no naive cache here")
        super().__init__(config)


class IsGreedy(BlindEngine):
    """It never samples."""

    capabilities = frozenset((REFUSALS, NAIVE))

    def submit(self, uid: int, ids: Sequence[int], max_tokens: int, **params: Any) -> Refusal | None:
        """Fall over anything but greedy."""
        assert not {"temperature", "top_k", "top_p", "seed"} & params.keys()
        return super().submit(uid, ids, max_tokens, **params)


class RepliesLate(BlindEngine):
    """What a step replies is told by the next one."""

    capabilities = frozenset((SAMPLING, NAIVE))

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.untold: list[Reply] = []

    def step(self) -> Sequence[Reply]:
        """Tell what the last step replied."""
        told, self.untold = self.untold, list(super().step())
        return told

    def is_idle(self) -> bool:
        """Wait for what is not told."""
        return super().is_idle() and not self.untold

    def abort(self, uid: int) -> Refusal | None:
        """Take back what is not told of an aborted request."""
        refusal = super().abort(uid)
        if refusal is None:
            self.untold = [reply for reply in self.untold if reply.uid != uid]
        return refusal


class NeverMeetsAUidTwice(BlindEngine):
    """A uid is good for one request; it keeps no books to tell a second from the first."""

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.uids: set[int] = set()

    def submit(self, uid: int, ids: Sequence[int], max_tokens: int, **params: Any) -> Refusal | None:
        """Fall over a uid that has ended."""
        refusal = super().submit(uid, ids, max_tokens, **params)
        assert refusal is not None or uid not in self.uids
        self.uids |= {uid} if refusal is None else set()
        return refusal


class SaysItInNumpy(BlindEngine):
    """Numbers are numpy's, sequences are lists and arrays."""

    def step(self) -> Any:
        """Yield replies."""
        from numpy import int64

        for reply in super().step():
            token = None if reply.token is None else int64(reply.token)
            yield replace(reply, uid=int64(reply.uid), token=token, cached_len=int64(reply.cached_len))

    def next_token(self, ids: Sequence[int], sampling: Sampling, output_idx: int) -> Any:
        """Return an array."""
        from numpy import array

        return array(super().next_token(ids, sampling, output_idx))


class ShowsItInNumpy(Engine):
    """The view is made of lists and arrays, and has no waiting requests in it."""

    def view(self) -> Any:
        """Show what holds a row."""
        from numpy import array

        view = super().view()
        running = [r._replace(row_slots=array(r.row_slots, int)) for r in view.requests if r.row is not None]  # type: ignore[arg-type]
        return view._replace(requests=running, free_pages=array(view.free_pages, int))  # type: ignore[arg-type]

    def last_event(self) -> Any:
        """Tell numpy's integers."""
        from numpy import int64

        return [
            {name: int64(value) if type(value) is int else value for name, value in event.items()}
            for event in super().last_event()
        ]


RIGHT: tuple[type[OracleEngine], ...] = (
    Engine,
    BlindEngine,
    StoresTheLastToken,
    AbortsQuietly,
    NeverMindsMistakes,
    CachesAlways,
    IsGreedy,
    RepliesLate,
    NeverMeetsAUidTwice,
    SaysItInNumpy,
    ShowsItInNumpy,
)
"""Engines that no judge may complain about."""
