"""Prefill: which waiting requests join a batch, and with how many tokens of their prompts.

First come, first served, until the token budget, the rows or the pages run out. Pages are counted
before the matched prefix is locked and again after, because the lock takes it out of what is
evictable. The request that gets less than its prompt is chunked and goes back to the head of the
line, its row and its lock kept.

No page is taken here: the scheduler does that once the batch is certain.
Chapter: spec/05-prefill-and-chunking.md
"""

from __future__ import annotations

from minisgl_ref.core import Req
from minisgl_ref.engine.engine import Engine
from minisgl_ref.kvcache.base import TOKEN_BYTES
from minisgl_ref.scheduler.cache import CacheManager
from minisgl_ref.scheduler.table import TableManager
from minisgl_ref.trace import Recorder
from minisgl_spec.views import PREFILL

NO_ROW, NO_ROOM, NO_ROOM_AFTER_LOCK = "no_row", "no_room", "no_room_after_lock"


class PrefillManager:
    """The line of requests whose prompt has not been launched whole."""

    def __init__(
        self,
        cache: CacheManager,
        table: TableManager,
        engine: Engine,
        token_budget: int,
        recorder: Recorder,
    ) -> None:
        self.waiting: list[Req] = []
        self._cache = cache
        self._table = table
        self._engine = engine
        self._token_budget = token_budget
        self._recorder = recorder

    def add(self, req: Req) -> None:
        """Queue a request at the end of the line."""
        self.waiting.append(req)

    def remove(self, req: Req) -> None:
        """Take a request out of the line."""
        self.waiting.remove(req)

    def schedule(self, reserved_pages: int) -> tuple[list[Req], list[Req]]:
        """Choose the requests of the next prefill batch.

        Args:
            reserved_pages: pages promised to admitted requests and not taken yet.

        Returns: the batch's requests, and those of them that were admitted just now.

        Mutates: the line; of each admitted request the lock, row and lengths; the device's rows.
        Keeps:   admitted_requests_fit, handle_is_locked, page_table_follows_handle.
        Spec:    05-prefill-and-chunking.md#schedule
        """
        budget = self._token_budget
        chosen: list[Req] = []
        admitted: list[Req] = []
        for req in self.waiting:
            if budget <= 0:
                break
            if req.handle is None:
                if not self._try_admit(req, reserved_pages):
                    break
                reserved_pages += req.pages_needed(self._cache.page_size)
                admitted.append(req)
            budget -= self._take_chunk(req, budget)
            chosen.append(req)
        chunked = [req for req in chosen if req.device_len < req.prompt_len]
        self.waiting = chunked + self.waiting[len(chosen) :]
        return chosen, admitted

    def _try_admit(self, req: Req, reserved_pages: int) -> bool:
        """Match, lock and give a row, or say why not now and leave everything as it was."""
        if not self._table.free_rows:
            return self._refuse(req, NO_ROW, 1, 0)
        handle = self._cache.match_request(bytes(req.key))
        page_size = self._cache.page_size
        need = reserved_pages + req.pages_in_all(page_size) - handle.prefix_len // page_size
        if need > self._cache.available_pages:
            return self._refuse(req, NO_ROOM, need, self._cache.available_pages)
        self._cache.lock(handle)
        if need > self._cache.available_pages:
            self._refuse(req, NO_ROOM_AFTER_LOCK, need, self._cache.available_pages)
            self._cache.unlock(handle)
            return False
        req.handle = handle
        req.row = self._table.allocate()
        req.pages = handle.pages()
        req.admitted_len = req.cached_len = req.written_len = handle.prefix_len
        req.phase = PREFILL
        if req.pages:
            self._engine.write_pages(req.row, 0, req.pages)
        self._recorder.record(
            "admit", uid=req.uid, row=req.row, cached_len=req.cached_len, pages=list(req.pages)
        )
        return True

    def _take_chunk(self, req: Req, budget: int) -> int:
        """Give a request its share of the budget and put those tokens into its row."""
        req.device_len = min(req.prompt_len, req.cached_len + budget)
        chunk = req.key[req.cached_len * TOKEN_BYTES : req.device_len * TOKEN_BYTES]
        self._engine.write_tokens(req.row, req.cached_len, bytes(chunk))
        return req.device_len - req.cached_len

    def _refuse(self, req: Req, why: str, need: int, available: int) -> bool:
        self._recorder.record("refuse", uid=req.uid, why=why, need=need, available=available)
        return False
