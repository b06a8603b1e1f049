"""Our own engine as a target: its pages and bytes turned into the runner's slots and tokens.

At level `cache` the engine's tree is wrapped here; at level `engine` the engine brings its own target
with its test doubles. Either is imported only when a target is made, for it needs the extra `engine`.

Nothing here decides anything.
Chapter: spec/README.md
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, cast

from minisgl_conformance.adapters.managers import OurManager
from minisgl_conformance.targets import (
    CACHE,
    EXACT,
    MANAGER,
    REFUSALS,
    RESET,
    UNJUDGED,
    VIEW,
    EngineTarget,
    MakeTarget,
)
from minisgl_spec.errors import ContractError
from minisgl_spec.trace import Json
from minisgl_spec.units import align_down, pages_to_slots, slots_to_pages
from minisgl_spec.views import CacheView


class OurCache:
    """The engine's prefix cache as a `CacheTarget`; or a cache that is given, which may decide otherwise."""

    def __init__(self, config: Json, cache: Any = None, is_exact: bool = True) -> None:
        from minisgl_ref.kvcache.naive_cache import NaiveCache
        from minisgl_ref.kvcache.radix_cache import RadixCache

        self.page_size: int = config["page_size"]
        caches = {"radix": RadixCache, "naive": NaiveCache}
        self.cache: Any = cache or caches[config.get("cache", "radix")](self.page_size)
        self.capabilities = frozenset((VIEW, RESET, REFUSALS, *((EXACT,) if is_exact else ())))

    def match_prefix(self, ids: Sequence[int]) -> tuple[Any, int, Sequence[int]]:
        """Match the bytes of `ids`."""
        handle = self.cache.match_prefix(_key(ids))
        return handle, handle.prefix_len, pages_to_slots(handle.pages(), self.page_size)

    def insert_prefix(self, ids: Sequence[int], slots: Sequence[int]) -> tuple[int, Any]:
        """Insert the bytes of `ids` with the pages of their slots.

        The engine is asked for whole pages; a slot that is missing behind them is refused here.
        """
        whole = align_down(len(slots), self.page_size)
        covered = align_down(len(ids), self.page_size)
        if len(slots) != len(ids) and whole >= covered:
            raise ContractError(
                "insert_prefix", "one slot per token", {"tokens": len(ids), "slots": len(slots)}
            )
        result = self.cache.insert_prefix(_key(ids), slots_to_pages(slots[:whole], self.page_size))
        return result.prefix_len, result.handle

    def lock(self, handle: Any) -> None:
        """Lock a handle."""
        self.cache.lock(handle)

    def unlock(self, handle: Any) -> None:
        """Unlock a handle."""
        self.cache.unlock(handle)

    def evict(self, size: int) -> Sequence[int]:
        """Evict, and turn pages into slots."""
        return pages_to_slots(self.cache.evict(size), self.page_size)

    def sizes(self) -> tuple[int, int]:
        """Return (evictable_size, protected_size)."""
        return self.cache.evictable_size, self.cache.protected_size

    def reset(self) -> None:
        """Empty the cache."""
        self.cache.reset()

    def view(self) -> CacheView:
        """Return the engine's own picture of its tree."""
        return cast(CacheView, self.cache.view())


def make_engine(config: Json) -> EngineTarget:
    """Build the engine that a configuration asks for, with every check on unless nobody judges it."""
    from minisgl_ref.checks import CheckLevel
    from minisgl_ref.testing import make_engine_target

    level = CheckLevel.OFF if config.get(UNJUDGED) else CheckLevel.FULL
    return cast(EngineTarget, make_engine_target(config, level))


def make_faulty(fault: Any, level: str) -> MakeTarget:
    """Return what builds targets with a fault of the engine's zoo."""
    from minisgl_ref.zoo.fault import load

    return make_changed(load(fault), level)


def make_changed(engine: Any, level: str) -> MakeTarget:
    """Return what builds targets of an engine whose source was changed; its own checks are off."""
    if level == CACHE:
        return lambda config: OurCache(config, engine.make_cache(config), engine.is_exact)
    if level == MANAGER:
        return lambda config: OurManager(config, engine.modules, engine.is_exact)
    make: MakeTarget = engine.make_engine_target
    return make


def _key(ids: Sequence[int]) -> bytes:
    return struct.pack(f"={len(ids)}i", *ids)
