"""The oracle as a target, at both levels: what the judges say of a definition is that it keeps its own rules.

It has no device, so nothing it does is ever late, and no executions are shown: the content of
slots is judged by shadow memory at level `cache` only.

Nothing here decides anything.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Sequence

from minisgl_conformance.targets import EVENTS, EXACT, LATE_WORK, NAIVE, REFUSALS, RESET, SAMPLING, VIEW
from minisgl_spec.cache import TREES
from minisgl_spec.errors import Refusal
from minisgl_spec.messages import Reply, Sampling
from minisgl_spec.numerics import digest_next_token
from minisgl_spec.radix_tree import Handle, RadixTree
from minisgl_spec.requests import Config, Submission
from minisgl_spec.scheduler import Scheduler
from minisgl_spec.trace import Json
from minisgl_spec.views import CacheView, EngineView


class OracleCache:
    """The oracle's tree as a `CacheTarget`; subclasses replace `make_tree`."""

    capabilities = frozenset((VIEW, RESET, REFUSALS, EXACT))

    def __init__(self, config: Json) -> None:
        self.tree = self.make_tree(config)

    def make_tree(self, config: Json) -> RadixTree:
        """Build the tree that a configuration asks for."""
        return TREES[config.get("cache", "radix")](config["page_size"])

    def match_prefix(self, ids: Sequence[int]) -> tuple[Handle, int, Sequence[int]]:
        """See `RadixTree.match_prefix`."""
        handle = self.tree.match_prefix(ids)
        return handle, handle.prefix_len, handle.slots()

    def insert_prefix(self, ids: Sequence[int], slots: Sequence[int]) -> tuple[int, Handle]:
        """See `RadixTree.insert_prefix`."""
        result = self.tree.insert_prefix(ids, slots)
        return result.prefix_len, result.handle

    def lock(self, handle: Handle) -> None:
        """See `RadixTree.lock`."""
        self.tree.lock(handle)

    def unlock(self, handle: Handle) -> None:
        """See `RadixTree.unlock`."""
        self.tree.unlock(handle)

    def evict(self, size: int) -> Sequence[int]:
        """See `RadixTree.evict`."""
        return self.tree.evict(size)

    def sizes(self) -> tuple[int, int]:
        """Return (evictable_size, protected_size)."""
        return self.tree.evictable_size, self.tree.protected_size

    def reset(self) -> None:
        """See `RadixTree.reset`."""
        self.tree.reset()

    def view(self) -> CacheView:
        """See `RadixTree.view`."""
        return self.tree.view()


class OracleEngine:
    """The oracle's scheduler with the digest model as an `EngineTarget`."""

    capabilities = frozenset((VIEW, EVENTS, LATE_WORK, RESET, REFUSALS, SAMPLING, NAIVE, EXACT))

    def __init__(self, config: Json) -> None:
        self.config = Config.from_json(config)
        self.scheduler = Scheduler(self.config, self._digest_token)

    def _digest_token(self, ids: tuple[int, ...], sampling: Sampling, output_idx: int, uid: int) -> int:
        return digest_next_token(ids, sampling, output_idx, self.config.vocab_size)

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
        """See `Scheduler.submit`."""
        sampling = Sampling(temperature, top_k, top_p, seed)
        return self.scheduler.submit(
            Submission(uid, tuple(ids), max_tokens, tuple(stop_ids), ignore_eos, sampling)
        )

    def abort(self, uid: int) -> Refusal | None:
        """See `Scheduler.abort`."""
        return self.scheduler.abort(uid)

    def step(self) -> Sequence[Reply]:
        """See `Scheduler.step`."""
        return self.scheduler.step().replies

    def is_idle(self) -> bool:
        """See `Scheduler.is_idle`."""
        return self.scheduler.is_idle()

    def next_token(self, ids: Sequence[int], sampling: Sampling, output_idx: int) -> tuple[int, ...]:
        """Return the one token of the digest model."""
        return (digest_next_token(tuple(ids), sampling, output_idx, self.config.vocab_size),)

    def plan(self, progress: Sequence[int]) -> None:
        """Ignore the plan: without a device there is no work that could be late."""

    def last_event(self) -> Sequence[Json]:
        """Return the inner events of the last operation."""
        return self.scheduler.inner

    def reset(self) -> None:
        """See `Scheduler.reset`."""
        self.scheduler.reset()

    def view(self) -> EngineView:
        """See `Scheduler.view`."""
        return self.scheduler.view()
