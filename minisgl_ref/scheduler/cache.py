"""Who owns which page: the free pages, and the prefix cache that gives pages back under pressure.

A page is free, cached by the prefix cache, or private to whoever took it. `allocate` hands out free
pages, first in, first out, and evicts the shortfall; `insert` makes private pages cached; `give_back`
makes private pages free. At most all but the last token of a request is matched, because one token
must be computed to have logits.

This file never knows a request or a row, and never writes a page table: the scheduler does.
Chapter: spec/03-locks-and-eviction.md, spec/06-decode-and-release.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from minisgl_ref.checks import CheckLevel, broken, check_full
from minisgl_ref.kvcache.base import TOKEN_BYTES, Handle, InsertResult, PrefixCache
from minisgl_spec.errors import ContractError
from minisgl_spec.units import slots_to_pages


class CacheManager:
    """The free pages of a pool of `num_pages`, beside the prefix cache.

    prefix_cache:  whose pages count as available while they are evictable.
    free_pages:    in the order in which they will be handed out.
    last_evicted:  the pages the latest `allocate` evicted, in eviction order.
    level:         what is checked after each operation; at OFF a page given back twice goes unnoticed.
    """

    def __init__(
        self, prefix_cache: PrefixCache, num_pages: int, level: CheckLevel = CheckLevel.LOCAL
    ) -> None:
        if num_pages < 1:
            raise ContractError("CacheManager", "num_pages >= 1", {"num_pages": num_pages})
        self.prefix_cache = prefix_cache
        self.page_size = prefix_cache.page_size
        self.num_pages = num_pages
        self._page_bytes = self.page_size * TOKEN_BYTES
        self.level = level
        self._is_full = level >= CheckLevel.FULL
        self.free_pages = deque(range(num_pages))
        self.last_evicted: list[int] = []
        self._batched: list[int] | None = None  # pages given back inside batched_frees, not yet free
        # Kept by the checks, so at LOCAL and FULL only: who owns the pages that are not free.
        self._private: set[int] = set()
        self._num_cached = 0

    @property
    def available_pages(self) -> int:
        """Pages that `allocate` can hand out: free and evictable."""
        return len(self.free_pages) + self.prefix_cache.evictable_size // self.page_size

    def match_request(self, key: bytes) -> Handle:
        """Return a handle of the longest cached prefix of all but the last token; not locked.

        Mutates: splits at most one node, refreshes last_used on the path.
        Keeps:   match_is_longest.
        Raises:  ContractError if the key is empty or not whole tokens.
        Spec:    02-radix-tree.md#match
        """
        if len(key) < TOKEN_BYTES:
            raise ContractError("match_request", "at least one token", {"key_bytes": len(key)})
        handle = self.prefix_cache.match_prefix(key[:-TOKEN_BYTES])
        if self.level:
            self._check_match(key, handle)
        return handle

    def lock(self, handle: Handle) -> None:
        """Protect the path of a handle from eviction.

        Mutates: handle.is_locked, ref_counts and sizes of the prefix cache.
        Keeps:   sizes_match_locks.
        Raises:  ContractError as `PrefixCache.lock`.
        Spec:    03-locks-and-eviction.md#lock
        """
        self.prefix_cache.lock(handle)
        if self.level:
            self._check_lock(handle)

    def unlock(self, handle: Handle) -> None:
        """Take back the protection a lock gave.

        Mutates: handle.is_locked, ref_counts and sizes of the prefix cache.
        Keeps:   sizes_match_locks.
        Raises:  ContractError as `PrefixCache.unlock`.
        Spec:    03-locks-and-eviction.md#unlock
        """
        self.prefix_cache.unlock(handle)
        if self.level:
            self._check_lock(handle)

    def insert(self, key: bytes, pages: Sequence[int]) -> InsertResult:
        """Cache the whole pages of `key`; those beyond the result's prefix_len stop being private.

        Mutates: splits at most one node, adds at most one leaf, refreshes last_used on the path.
        Keeps:   pages_partitioned, sizes_match_locks.
        Raises:  ContractError as `PrefixCache.insert_prefix`.
        Spec:    02-radix-tree.md#insert
        """
        result = self.prefix_cache.insert_prefix(key, pages)
        if self.level:
            self._check_insert(pages, result)
        return result

    def allocate(self, num_pages: int) -> list[int]:
        """Take pages from the free list; what is missing is evicted first.

        Returns:
            pages: `num_pages` of them, private to the caller until inserted or given back.

        Mutates: free_pages, last_evicted; removes leaves of the prefix cache if pages are missing.
        Keeps:   pages_partitioned, evict_frees_enough.
        Raises:  ContractError if num_pages is negative or above available_pages.
        Spec:    03-locks-and-eviction.md#who-frees-the-page
        """
        if not 0 <= num_pages <= self.available_pages:
            self._refuse_allocate(num_pages)
        free = self.free_pages
        missing = num_pages - len(free)
        self.last_evicted = []
        if missing > 0:
            self.last_evicted = self.prefix_cache.evict(missing * self.page_size)
            free.extend(self.last_evicted)
        take = free.popleft
        pages = [take() for _ in range(num_pages)]
        if self.level:
            self._check_allocate(missing, pages)
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        """Make private pages free, at the end of the free list; inside `batched_frees`, when it ends.

        Mutates: free_pages, or the pages `batched_frees` has collected.
        Keeps:   pages_partitioned, released_once.
        Raises:  InvariantError at LOCAL and FULL if a page is not private.
        Spec:    06-decode-and-release.md#release
        """
        if self.level:
            self._check_give_back(pages)
        if self._batched is None:
            self.free_pages.extend(pages)
        else:
            self._batched.extend(pages)
        if self.level:
            self._check_sums()

    @contextmanager
    def batched_frees(self) -> Iterator[None]:
        """Collect what is given back inside, and free it in that order when the outermost region ends.

        Page numbers are copied as they are given back, so a row may be rewritten before the end.

        Mutates: free_pages, at the end, after an exception too.
        Keeps:   pages_partitioned.
        """
        if self._batched is not None:
            yield
            return
        batched: list[int] = []
        self._batched = batched
        try:
            yield
        finally:
            self._batched = None
            self.free_pages.extend(batched)

    def reset(self) -> None:
        """Forget every cached prefix; its pages become free, and free pages are in order of number again.

        Mutates: the prefix cache, free_pages.
        Keeps:   pages_partitioned.
        Raises:  ContractError while a handle is locked.
        Spec:    03-locks-and-eviction.md#reset
        """
        forgotten = self.prefix_cache.reset()
        self.free_pages = deque(sorted([*self.free_pages, *forgotten]))
        self._num_cached = 0
        if self.level:
            self._check_sums()

    def check_integrity(self) -> None:
        """Check every invariant of the prefix cache, and that no page is owned twice.

        At OFF nobody knows which pages are private, so a lost page goes unnoticed.

        Mutates: nothing.
        Raises:  InvariantError.
        """
        view = self.prefix_cache.view()
        check_full(view)
        cached = [page for node in view.nodes for page in slots_to_pages(node.slots, self.page_size)]
        owned = [*self.free_pages, *cached, *self._private, *(self._batched or ())]
        lost = sorted(set(range(self.num_pages)) - set(owned)) if self.level else []
        if lost or len(set(owned)) != len(owned):
            self._broken(
                "pages_partitioned",
                free_pages=list(self.free_pages),
                cached_pages=cached,
                private_pages=sorted(self._private),
                waiting_pages=self._batched or [],
                lost_pages=lost,
            )

    # -- what each operation promised; at LOCAL and FULL ---------------------------------------

    def _check_match(self, key: bytes, handle: Handle) -> None:
        """The path spells the prefix, and the next page of the key continues it nowhere."""
        node = handle.node
        length = handle.prefix_len * TOKEN_BYTES
        spelled = b"".join([above.key for above in node.path()])
        next_page = key[length : min(length + self._page_bytes, len(key) - TOKEN_BYTES)]
        is_prefix = len(spelled) == length < len(key) and key.startswith(spelled)
        if not is_prefix or next_page in node.children:
            self._broken(
                "match_is_longest",
                prefix_len=handle.prefix_len,
                path_len=len(spelled) // TOKEN_BYTES,
                key_len=len(key) // TOKEN_BYTES,
                node=node.node_id,
                is_prefix=is_prefix,
            )
        if self._is_full:
            self.check_integrity()

    def _check_lock(self, handle: Handle) -> None:
        """The handle is counted, and what left one size is in the other."""
        ref_count = handle.node.ref_count
        if ref_count < handle.is_locked:
            node_id, is_locked = handle.node.node_id, handle.is_locked
            self._broken("ref_count_counts_handles", node=node_id, ref_count=ref_count, is_locked=is_locked)
        self._check_sizes()
        if self._is_full:
            self.check_integrity()

    def _check_insert(self, pages: Sequence[int], result: InsertResult) -> None:
        """What was not cached before was private, and the new leaf holds exactly that."""
        prefix_len, handle = result
        taken = list(pages[prefix_len // self.page_size : handle.prefix_len // self.page_size])
        if taken:
            if handle.node.pages != taken or not self._private.issuperset(taken):
                self._broken(
                    "pages_partitioned",
                    inserted_pages=taken,
                    not_private=sorted(set(taken) - self._private),
                    node=handle.node.node_id,
                    node_pages=handle.node.pages,
                )
            self._private.difference_update(taken)
            self._num_cached += len(taken)
        self._check_sums()

    def _check_allocate(self, missing: int, pages: list[int]) -> None:
        """Enough was evicted, nothing that is private; nothing is handed out twice."""
        evicted, private = self.last_evicted, self._private
        num_private = len(private)
        if len(evicted) < missing or not private.isdisjoint(evicted):
            self._broken(
                "evict_frees_enough",
                missing_pages=missing,
                evicted_pages=evicted,
                private_among_them=sorted(private.intersection(evicted)),
            )
        private.update(pages)
        self._num_cached -= len(evicted)
        if len(private) != num_private + len(pages):
            after = len(private)
            self._broken(
                "pages_partitioned", allocated=pages, private_before=num_private, private_after=after
            )
        self._check_sums()

    def _check_give_back(self, pages: Sequence[int]) -> None:
        """Every page is private, and named once."""
        if not self._private.issuperset(pages) or len(set(pages)) != len(pages):
            foreign = set(pages) - self._private
            self._broken(
                "released_once",
                given_back=list(pages),
                not_private=sorted(foreign),
                free_among_them=sorted(foreign.intersection([*self.free_pages, *(self._batched or ())])),
            )
        self._private.difference_update(pages)

    def _check_sums(self) -> None:
        """Every page is counted once, and the sizes of the cache count the cached ones."""
        self._check_sizes()
        num_free, num_private = len(self.free_pages), len(self._private)
        num_waiting = len(self._batched) if self._batched else 0
        if num_free + self._num_cached + num_private + num_waiting != self.num_pages:
            self._broken(
                "pages_partitioned",
                free_pages=num_free,
                cached_pages=self._num_cached,
                private_pages=num_private,
                waiting_pages=num_waiting,
                num_pages=self.num_pages,
            )
        if self._is_full:
            self.check_integrity()

    def _check_sizes(self) -> None:
        cache = self.prefix_cache
        if cache.evictable_size + cache.protected_size != self._num_cached * self.page_size:
            self._broken(
                "sizes_match_locks",
                evictable_size=cache.evictable_size,
                protected_size=cache.protected_size,
                cached_pages=self._num_cached,
                page_size=self.page_size,
            )

    def _broken(self, rule: str, **numbers: object) -> NoReturn:
        raise broken(rule, self.prefix_cache.view(), **numbers)

    def _refuse_allocate(self, num_pages: int) -> NoReturn:
        got = {
            "num_pages": num_pages,
            "available_pages": self.available_pages,
            "free_pages": len(self.free_pages),
            "evictable_size": self.prefix_cache.evictable_size,
            "protected_size": self.prefix_cache.protected_size,
        }
        need = "num_pages >= 0" if num_pages < 0 else "num_pages <= available_pages"
        advice = "" if num_pages < 0 else "Admission must count the pages that allocation will take."
        raise ContractError("allocate", need, got, advice)
