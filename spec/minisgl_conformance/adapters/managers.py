"""Managers as targets: pages and rows of sequences, without a model; the oracle's parts, and the engine's.

`start` finds a cached prefix, locks it and takes a row; `extend` makes room for more positions; `commit`
caches the whole pages of what is written and points the row at the tree; `finish` does so for the last
time and gives everything back; `abort` gives back what was not committed. Nothing is promised ahead:
an extension that finds no room is put off and changes nothing.

Nothing here knows tokens beyond the sequence it is given, or judges.
Chapter: spec/03-locks-and-eviction.md, spec/06-decode-and-release.md
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minisgl_conformance.targets import EXACT, REFUSALS, VIEW
from minisgl_spec.cache import PrefixCache
from minisgl_spec.errors import ContractError
from minisgl_spec.page_pool import RowPool
from minisgl_spec.trace import Json
from minisgl_spec.units import align_up, div_ceil, pages_to_slots, slots_to_pages
from minisgl_spec.views import DECODE, CacheView, EngineView, HandleView, RequestView

CAPABILITIES = frozenset((VIEW, REFUSALS, EXACT))


@dataclass
class Held:
    """What a manager holds for one sequence; `pages` are those of its row."""

    uid: int
    ids: tuple[int, ...]
    row: int
    handle: Any
    pages: list[int]
    written_len: int
    committed_len: int


class Manager:
    """What both managers share: the mistakes they refuse, and their view."""

    capabilities = CAPABILITIES

    def __init__(self, config: Json) -> None:
        self.page_size: int = config["page_size"]
        self.num_pages: int = config["num_pages"]
        self.num_rows: int = config["num_rows"]
        self.max_seq_len: int = config["max_seq_len"]
        self.held: dict[int, Held] = {}  # by uid, in order of start

    def check_start(self, uid: int, ids: Sequence[int]) -> None:
        """Refuse a uid that is live, and a sequence that is empty or can never fit."""
        if uid in self.held:
            raise ContractError("start", "a uid that is not live", {"uid": uid, "live": list(self.held)})
        pages = div_ceil(len(ids), self.page_size)
        if not 1 <= len(ids) <= self.max_seq_len or pages > self.num_pages:
            got = {"tokens": len(ids), "max_seq_len": self.max_seq_len, "num_pages": self.num_pages}
            raise ContractError("start", "a sequence that fits the row and the pool", got)

    def known(self, operation: str, uid: int) -> Held:
        """Return what is held for a live uid, or refuse."""
        if uid not in self.held:
            raise ContractError(operation, "a live uid", {"uid": uid, "live": list(self.held)})
        return self.held[uid]

    def check_extend(self, held: Held, num_tokens: int) -> int:
        """Refuse an extension past the sequence; return the pages it takes."""
        left = len(held.ids) - held.written_len
        if not 1 <= num_tokens <= left:
            got = {"uid": held.uid, "num_tokens": num_tokens, "left": left}
            raise ContractError("extend", "1 <= num_tokens <= tokens left of the sequence", got)
        return div_ceil(held.written_len + num_tokens, self.page_size) - len(held.pages)

    def engine_view(
        self, cache: CacheView, free_pages: Sequence[int], free_rows: Sequence[int]
    ) -> EngineView:
        """Return a picture of everything; a sequence is a request that is promised nothing more."""
        return EngineView(
            cache=cache,
            page_size=self.page_size,
            num_pages=self.num_pages,
            num_rows=self.num_rows,
            row_width=align_up(self.max_seq_len, self.page_size),
            free_pages=tuple(free_pages),
            retired_pages=(),
            free_rows=tuple(free_rows),
            requests=tuple([self._request_view(held) for held in self.held.values()]),
            in_flight=(),
        )

    def _request_view(self, held: Held) -> RequestView:
        handle: HandleView = held.handle.view()
        return RequestView(
            uid=held.uid,
            phase=DECODE,
            ids=held.ids,
            prompt_len=len(held.ids),
            cached_len=held.written_len,
            device_len=held.written_len + 1,
            max_device_len=held.written_len + 1,
            written_len=held.written_len,
            row=held.row,
            row_slots=pages_to_slots(held.pages, self.page_size),
            handle=handle,
            num_in_flight=0,
        )


class OracleManager(Manager):
    """The oracle's tree, page pool and row pool as a `ManagerTarget`."""

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.cache = PrefixCache(config.get("cache", "radix"), self.page_size, self.num_pages)
        self.rows = RowPool(self.num_rows)

    def start(self, uid: int, ids: Sequence[int]) -> int | None:
        """Find a cached prefix, lock it and take a row; None while there is no row."""
        self.check_start(uid, ids)
        if not self.rows.free_rows:
            return None
        handle = self.cache.match_all_but_last(tuple(ids))
        self.cache.tree.lock(handle)
        length = handle.prefix_len
        pages = list(slots_to_pages(handle.slots(), self.page_size))
        self.held[uid] = Held(uid, tuple(ids), self.rows.take(), handle, pages, length, length)
        return length

    def extend(self, uid: int, num_tokens: int) -> bool:
        """Make room for more positions, or change nothing."""
        held = self.known("extend", uid)
        count = self.check_extend(held, num_tokens)
        if count > self.cache.available_pages:
            return False
        held.pages += self.cache.allocate(count)[0]
        held.written_len += num_tokens
        return True

    def commit(self, uid: int) -> None:
        """Cache the whole pages of what is written; name the tree's pages for what it had already."""
        held = self.known("commit", uid)
        result, old = self._insert(held, held.written_len), held.handle
        self.cache.tree.lock(result.handle)
        self.cache.tree.unlock(old)
        first, end = old.prefix_len // self.page_size, result.prefix_len // self.page_size
        duplicates = held.pages[first:end]
        whole = slots_to_pages(result.handle.slots(), self.page_size)
        held.pages = [*whole, *held.pages[len(whole) :]]
        held.handle, held.committed_len = result.handle, held.written_len
        self.cache.pool.give(duplicates)

    def finish(self, uid: int) -> None:
        """Cache what is written and give everything back."""
        held = self.known("finish", uid)
        self._release(held, held.written_len)

    def abort(self, uid: int) -> None:
        """Give everything back; what was not committed is not cached."""
        held = self.known("abort", uid)
        self._release(held, held.committed_len)

    def slots(self, uid: int) -> Sequence[int]:
        """Return the slot of every written position."""
        held = self.known("slots", uid)
        return pages_to_slots(held.pages, self.page_size)[: held.written_len]

    def free_size(self) -> int:
        """Return the free slots."""
        return len(self.cache.pool.free_pages) * self.page_size

    def view(self) -> EngineView:
        """Return a picture of everything."""
        return self.engine_view(self.cache.tree.view(), self.cache.pool.free_pages, self.rows.free_rows)

    def _insert(self, held: Held, length: int) -> Any:
        slots = pages_to_slots(held.pages, self.page_size)
        return self.cache.tree.insert_prefix(held.ids[:length], slots[:length])

    def _release(self, held: Held, length: int) -> None:
        result = self._insert(held, length)
        self.cache.tree.unlock(held.handle)
        first, end = held.handle.prefix_len // self.page_size, result.prefix_len // self.page_size
        duplicates, tail = held.pages[first:end], held.pages[result.handle.prefix_len // self.page_size :]
        self.cache.pool.give([*duplicates, *tail])
        self.rows.give(held.row)
        del self.held[held.uid]


class OurManager(Manager):
    """The engine's CacheManager and TableManager as a `ManagerTarget`.

    modules: those of an engine with a fault, by their full names; the real ones if left out.
    """

    def __init__(self, config: Json, modules: Mapping[str, Any] | None = None, is_exact: bool = True) -> None:
        super().__init__(config)
        from minisgl_ref import build
        from minisgl_ref.checks import CheckLevel
        from minisgl_ref.scheduler import cache, table

        if modules is not None:
            build = modules["minisgl_ref.build"]
            cache, table = modules["minisgl_ref.scheduler.cache"], modules["minisgl_ref.scheduler.table"]
        if not is_exact:
            self.capabilities = CAPABILITIES - {EXACT}
        tree = build.PREFIX_CACHES[config.get("cache", "radix")](self.page_size)
        self.cache: Any = cache.CacheManager(tree, self.num_pages, CheckLevel.OFF)
        self.table: Any = table.TableManager(
            self.num_rows, self.max_seq_len, self.page_size, self.num_pages, "cpu", CheckLevel.OFF
        )
        if self.num_pages % 4 == 0:
            self.table._host = None  # rows are written as on a CUDA device, by operations of torch
        self.page_table: Any = self.table.page_table.numpy()  # the same memory

    def start(self, uid: int, ids: Sequence[int]) -> int | None:
        """Find a cached prefix, lock it and take a row; None while there is no row."""
        self.check_start(uid, ids)
        if not self.table.free_rows:
            return None
        handle = self.cache.match_request(_key(ids))
        self.cache.lock(handle)
        row, pages, length = self.table.allocate(), handle.pages(), handle.prefix_len
        self.table.write_row_pages(row, 0, pages)
        self.held[uid] = Held(uid, tuple(ids), row, handle, pages, length, length)
        return int(length)

    def extend(self, uid: int, num_tokens: int) -> bool:
        """Make room for more positions, or change nothing."""
        held = self.known("extend", uid)
        count = self.check_extend(held, num_tokens)
        if count > self.cache.available_pages:
            return False
        pages = self.cache.allocate(count)
        self.table.write_row_pages(held.row, len(held.pages), pages)
        held.pages += pages
        held.written_len += num_tokens
        return True

    def commit(self, uid: int) -> None:
        """Cache the whole pages of what is written; name the tree's pages for what it had already."""
        held = self.known("commit", uid)
        old, result = held.handle, self.cache.insert(_key(held.ids[: held.written_len]), held.pages)
        self.cache.lock(result.handle)
        self.cache.unlock(old)
        first, end = old.prefix_len // self.page_size, result.prefix_len // self.page_size
        duplicates = held.pages[first:end]
        if duplicates:
            held.pages[first:end] = result.handle.pages()[first:end]
            self.table.write_row_pages(held.row, first, held.pages[first:end])
        held.handle, held.committed_len = result.handle, held.written_len
        self.cache.give_back(duplicates)

    def finish(self, uid: int) -> None:
        """Cache what is written and give everything back."""
        held = self.known("finish", uid)
        self._release(held, held.written_len)

    def abort(self, uid: int) -> None:
        """Give everything back; what was not committed is not cached."""
        held = self.known("abort", uid)
        self._release(held, held.committed_len)

    def slots(self, uid: int) -> Sequence[int]:
        """Return the slot of every written position, as the page table has it."""
        held = self.known("slots", uid)
        slots: list[int] = self.page_table[held.row, : held.written_len].tolist()
        return slots

    def free_size(self) -> int:
        """Return the free slots."""
        return len(self.cache.free_pages) * self.page_size

    def view(self) -> EngineView:
        """Return a picture of everything."""
        return self.engine_view(self.cache.prefix_cache.view(), self.cache.free_pages, self.table.free_rows)

    def _release(self, held: Held, length: int) -> None:
        result = self.cache.insert(_key(held.ids[:length]), held.pages)
        self.cache.unlock(held.handle)
        first, end = held.handle.prefix_len // self.page_size, result.prefix_len // self.page_size
        tail = held.pages[result.handle.prefix_len // self.page_size :]
        with self.cache.batched_frees():
            self.cache.give_back(held.pages[first:end])
            with self.cache.batched_frees():  # ends with the outer region
                self.cache.give_back(tail)
        self.table.give_back(held.row)
        del self.held[held.uid]


def _key(ids: Sequence[int]) -> bytes:
    return struct.pack(f"={len(ids)}i", *ids)
