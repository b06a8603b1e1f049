"""A prefix cache that caches nothing: what the engine does when caching is switched off.

Every match is empty and every insertion leaves its pages with the caller, so nothing is ever
evictable. It has the same interface and the same refusals as the radix cache: caching may change
what is computed, never a token.

This file never keeps a page.
Chapter: spec/03-locks-and-eviction.md#the-naive-cache
"""

from __future__ import annotations

from collections.abc import Sequence

from minisgl_ref.kvcache.base import Handle, InsertResult, PrefixCache, view_of
from minisgl_spec.views import CacheView


class NaiveCache(PrefixCache):
    """A prefix cache of a root and nothing else; locks are counted there."""

    def match_prefix(self, key: bytes) -> Handle:
        """Return a handle of nothing.

        Mutates: nothing.
        Raises:  ContractError if the key is not whole tokens.
        """
        self._check_key("match_prefix", key)
        return Handle(self, self._root, 0)

    def insert_prefix(self, key: bytes, pages: Sequence[int]) -> InsertResult:
        """Cache nothing: prefix_len is 0, the handle covers nothing, every page stays the caller's.

        Mutates: nothing.
        Raises:  ContractError if the key is not whole tokens or the pages do not cover it.
        """
        self._check_insert(key, pages)
        return InsertResult(0, Handle(self, self._root, 0))

    def lock(self, handle: Handle) -> None:
        """Count a locked handle.

        Mutates: handle.is_locked, the root's ref_count.
        Raises:  ContractError if the handle is locked, or not ours.
        """
        if handle.is_locked or handle.cache is not self:
            self._refuse_lock(handle)
        handle.is_locked = True
        self._locked[handle] = None
        self._root.ref_count += 1

    def unlock(self, handle: Handle) -> None:
        """Take back what a lock counted.

        Mutates: handle.is_locked, the root's ref_count.
        Raises:  ContractError if the handle is not locked, or not ours.
        """
        if not handle.is_locked or handle.cache is not self:
            self._refuse_unlock(handle)
        handle.is_locked = False
        del self._locked[handle]
        self._root.ref_count -= 1

    def evict(self, size: int) -> list[int]:
        """Return no page; nothing is evictable.

        Mutates: nothing.
        Raises:  ContractError if size is not 0.
        """
        if size:
            self._refuse_evict(size)
        return []

    def reset(self) -> list[int]:
        """Return no page; nothing was cached.

        Mutates: nothing.
        Raises:  ContractError while a handle is locked.
        """
        self._check_reset()
        return []

    def view(self) -> CacheView:
        """Describe the root and the locked handles.

        Mutates: nothing.
        """
        return view_of(self, [self._root])
