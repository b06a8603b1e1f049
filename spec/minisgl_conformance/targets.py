"""Targets: what an implementation has to offer to be driven and judged, one protocol per level.

A target is made from a program's configuration by `make_target(config)`. It declares what it can
show in `capabilities`; what is not declared is not judged, and the summary lists it as not claimed.
A caller's mistake is answered with `minisgl_spec.errors.ContractError`, a request that cannot be
served with a `Refusal`; any other exception is a finding.

Nothing here runs anything. An adapter of forty lines is enough: see `adapters/`.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from minisgl_spec.errors import ContractError, Refusal
from minisgl_spec.messages import Execution, Reply, Sampling
from minisgl_spec.trace import Json
from minisgl_spec.views import CacheView, EngineView

CACHE, MANAGER, ENGINE = "cache", "manager", "engine"
LEVELS = (CACHE, MANAGER, ENGINE)

VIEW = "view"
"""`view()` shows the state: judged by structure and ownership."""

EXECUTIONS = "executions"
"""`executions()` lists what ran on the device: judged by content."""

EVENTS = "events"
"""`last_event()` lists the inner events of the last operation: judged by `released_once`."""

LATE_WORK = "late_work"
"""`plan(progress)` decides how far each stream comes in the next step."""

RESET = "reset"
"""`reset()` empties the cache."""

REFUSALS = "refusals"
"""A caller's mistake is refused and changes nothing; else none is sent, and any abort may be refused."""

SAMPLING = "sampling"
"""An engine samples by temperature, top_k, top_p and seed; else only greedy requests are sent to it."""

NAIVE = "naive"
"""An engine runs without a cache, too (cache="naive"); else it never has to, nor is compared with that."""

EXACT = "exact"
"""The target takes the oracle's decisions: victims, free-list order, node numbers, events."""

CAPABILITIES: dict[str, tuple[str, ...]] = {
    CACHE: (VIEW, RESET, REFUSALS, EXACT),
    MANAGER: (VIEW, REFUSALS, EXACT),
    ENGINE: (VIEW, EXECUTIONS, EVENTS, LATE_WORK, RESET, REFUSALS, SAMPLING, NAIVE, EXACT),
}


class CacheTarget(Protocol):
    """A prefix cache. Slots and pages are the runner's: it allocates, writes and gives back.

    config: page_size, num_pages (the runner's pool), cache ("radix" or "naive").
    A handle is whatever the target likes; the runner only hands it back.

    Optional, declared in `capabilities`: `view() -> CacheView`, `reset() -> None`.
    """

    @property
    def capabilities(self) -> Collection[str]:
        """What the target claims, of `CAPABILITIES["cache"]`."""
        ...

    def match_prefix(self, ids: Sequence[int]) -> tuple[Any, int, Sequence[int]]:
        """Return a handle, the tokens it covers and their slots."""
        ...

    def insert_prefix(self, ids: Sequence[int], slots: Sequence[int]) -> tuple[int, Any]:
        """Cache the whole pages of `ids`; return the tokens cached before, and a handle on all of them.

        The handle is not looked into: once it is locked, `sizes()` must protect what it covers.
        """
        ...

    def lock(self, handle: Any) -> None:
        """Protect a handle's prefix."""
        ...

    def unlock(self, handle: Any) -> None:
        """Take the protection back."""
        ...

    def evict(self, size: int) -> Sequence[int]:
        """Give up at least `size` slots; return them."""
        ...

    def sizes(self) -> tuple[int, int]:
        """Return (evictable_size, protected_size) in slots."""
        ...


class ShowsCache(CacheTarget, Protocol):
    """A cache that also claims VIEW and RESET."""

    def view(self) -> CacheView:
        """Return a picture of the tree."""
        ...

    def reset(self) -> None:
        """Forget everything cached; ContractError while a handle is locked."""
        ...


class ManagerTarget(Protocol):
    """Pages and rows of sequences, without a model: the runner plays the model, through `slots`.

    config: page_size, num_pages, num_rows, max_seq_len, cache.
    A sequence is known whole from its start; `extend` says how far it is computed.

    Optional, declared in `capabilities`: `view() -> EngineView`.
    """

    @property
    def capabilities(self) -> Collection[str]:
        """What the target claims, of `CAPABILITIES["manager"]`."""
        ...

    def start(self, uid: int, ids: Sequence[int]) -> int | None:
        """Take in a sequence; return how many of its tokens are cached, or None for not now."""
        ...

    def extend(self, uid: int, num_tokens: int) -> bool:
        """Make room for the next tokens; False for not now."""
        ...

    def commit(self, uid: int) -> None:
        """Everything extended so far has been computed: cache what can be cached of it."""
        ...

    def finish(self, uid: int) -> None:
        """Cache everything extended so far and give the rest back."""
        ...

    def abort(self, uid: int) -> None:
        """Give everything back; nothing that was not committed may be cached."""
        ...

    def slots(self, uid: int) -> Sequence[int]:
        """Return the slot of every position extended so far."""
        ...

    def free_size(self) -> int:
        """Return the slots that nobody owns."""
        ...


class EngineTarget(Protocol):
    """An engine: requests go in, tokens come out, one step at a time.

    config: page_size, num_pages, num_rows, max_seq_len, token_budget, cache, overlap, vocab_size,
            eos_ids, model, streams; and `UNJUDGED`, in a variant only.

    Optional, declared in `capabilities`: the methods of `ShowsEngine`, and what else it does: REFUSALS,
    SAMPLING, NAIVE. A uid is given to a second request only once no view shows the first any more.
    """

    @property
    def capabilities(self) -> Collection[str]:
        """What the target claims, of `CAPABILITIES["engine"]`."""
        ...

    def submit(
        self,
        uid: int,
        ids: Sequence[int],
        max_tokens: int,
        *,
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Refusal | None:
        """Queue a request, or refuse it; an option that has its default is left out of the call."""
        ...

    def abort(self, uid: int) -> Refusal | None:
        """End a request; its terminal reply comes with a later step."""
        ...

    def step(self) -> Sequence[Reply]:
        """Run one step; return its replies in order."""
        ...

    def is_idle(self) -> bool:
        """Whether a step would have nothing to do."""
        ...

    def next_token(self, ids: Sequence[int], sampling: Sampling, output_idx: int) -> tuple[int, ...]:
        """Return every token that the model permits after `ids`: one, or those that tie."""
        ...


class ShowsEngine(EngineTarget, Protocol):
    """An engine with everything to show: VIEW, EXECUTIONS, EVENTS, LATE_WORK and RESET."""

    def view(self) -> EngineView:
        """Return a picture of cache, pools, requests and batches in flight."""
        ...

    def executions(self) -> Sequence[Execution]:
        """Return what the device has run since the last call, in its order."""
        ...

    def last_event(self) -> Sequence[Json]:
        """Return the inner events of the last operation, in order."""
        ...

    def plan(self, progress: Sequence[int]) -> None:
        """Decide how far each stream comes in the next step."""
        ...

    def reset(self) -> None:
        """Empty the cache; ContractError while a request holds a part of it."""
        ...


Target = CacheTarget | ManagerTarget | EngineTarget
MakeTarget = Callable[[Json], Any]
"""Builds a target from a program's configuration."""


def claims(target: Target, capability: str) -> bool:
    """Say whether a target claims a capability."""
    return capability in target.capabilities


def check_capabilities(target: Target, level: str) -> None:
    """Refuse a claim that the level does not know: a misspelt one would switch its judge off in silence.

    Raises: ContractError naming it.
    """
    for name in target.capabilities:
        if name not in CAPABILITIES[level]:
            raise ContractError(
                "capabilities", f"names of {CAPABILITIES[level]} at level {level}", {"name": repr(name)}
            )


def not_claimed(target: Target, level: str) -> tuple[str, ...]:
    """Return the capabilities of the level that a target does not claim."""
    return tuple(name for name in CAPABILITIES[level] if name not in target.capabilities)


def target_config(config: Mapping[str, Any]) -> Json:
    """Return what of a program's configuration is the target's: all but the runner's own keys."""
    return {name: value for name, value in config.items() if name != COMPARE}


COMPARE = "compare"
"""The runner's own key in an engine program: which variants of it the tokens are compared with, by commas."""

UNJUDGED = "unjudged"
"""A key of a variant's configuration: only its replies are looked at, its own checks may be left out."""
