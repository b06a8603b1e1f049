"""The scheduler: one step admits, takes pages, launches a batch and processes a result.

In the normal loop a step processes the batch it launched; in the overlap loop the one before, so
that the device always has work. A request that has had its terminal reply may still be in flight:
it keeps its row, its pages and its lock until the last batch that holds it has been processed. After
a step that failed the next operation first ends every admitted request, and drops the batches in flight.

How work reaches the device is `engine/stream.py`'s business, what it computes the model's.
Chapter: spec/05-prefill-and-chunking.md, spec/06-decode-and-release.md, spec/07-overlap.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from minisgl_ref.checks import CheckLevel, check_full
from minisgl_ref.core import Batch, BatchEntry, Req, SamplingParams, key_of, malformed, plain_params
from minisgl_ref.engine.engine import Engine, Result
from minisgl_ref.kvcache.base import TOKEN_BYTES
from minisgl_ref.scheduler.cache import CacheManager
from minisgl_ref.scheduler.decode import DecodeManager
from minisgl_ref.scheduler.prefill import PrefillManager
from minisgl_ref.scheduler.table import TableManager
from minisgl_ref.trace import Recorder
from minisgl_ref.view import view_engine
from minisgl_spec.errors import Refusal
from minisgl_spec.messages import ABORT, Reply
from minisgl_spec.units import div_ceil
from minisgl_spec.views import DECODE, PREFILL, RETIRED, EngineView


class Scheduler:
    """The requests of one engine, from submission to release.

    max_seq_len:   tokens of prompt and outputs together, at most.
    in_flight:     launched batches with their results, oldest first.
    retired:       (number of the last batch that may touch them, pages given up).
    """

    def __init__(
        self,
        engine: Engine,
        cache: CacheManager,
        table: TableManager,
        *,
        max_seq_len: int,
        token_budget: int,
        overlap: bool,
        check_level: CheckLevel = CheckLevel.LOCAL,
        recorder: Recorder | None = None,
    ) -> None:
        self.engine = engine
        self.cache = cache
        self.table = table
        self.max_seq_len = max_seq_len
        self.overlap = overlap
        self.check_level = check_level
        self.recorder = recorder or Recorder()
        self.prefill = PrefillManager(cache, table, engine, token_budget, self.recorder)
        self.decode = DecodeManager()
        self.requests: dict[int, Req] = {}  # by uid, in order of arrival, until released
        self.admitted: dict[int, Req] = {}  # by uid, in order of admission, until released
        self.in_flight: list[tuple[Batch, Result]] = []
        self.retired: list[tuple[int, list[int]]] = []
        self._replies: list[Reply] = []
        self._num_launched = 0
        self._has_failed = False  # the last step did not come to its end

    # -- operations --------------------------------------------------------------------------

    def submit(self, uid: int, ids: Sequence[int], params: SamplingParams) -> Refusal | None:
        """Queue a request, or refuse it and change nothing.

        Returns: None if accepted, else the reason, the value and the limit.
        Keeps:   refusal_changes_nothing.
        Spec:    04-requests.md#refusal
        """
        self._begin()
        if uid in self.requests or any(reply.uid == uid for reply in self._replies):
            return Refusal("duplicate_uid", uid, "one request per uid at a time")
        refusal = malformed(ids, params)
        if refusal is not None:
            return refusal
        params = plain_params(params)
        refusal = self._refusal_of(ids, params)
        if refusal is not None:
            return refusal
        req = Req(
            uid=uid,
            key=bytearray(key_of(ids)),
            prompt_len=len(ids),
            max_tokens=self._clamped(len(ids), params.max_tokens),
            sampling=params.sampling,
            stop_ids=frozenset(params.stop_token_ids)
            | frozenset(() if params.ignore_eos else self.engine.model.config.eos_ids),
            device_len=len(ids),
        )
        self.requests[uid] = req
        self.prefill.add(req)
        self._check()
        return None

    def abort(self, uid: int) -> Refusal | None:
        """End a request: its terminal reply comes with the next step, no token after this call.

        A request in flight is only marked; it is released when its last batch is processed.

        Returns: None, or a refusal if no request of this uid is left to end.
        Spec:    06-decode-and-release.md#abort
        """
        self._begin()
        req = self.requests.get(uid)
        if req is None or req.phase == RETIRED:
            return Refusal("unknown_uid", uid, "a request that has not ended")
        self._replies.append(Reply(uid, None, ABORT, req.admitted_len))
        if req in self.prefill.waiting:
            self.prefill.remove(req)
        if req.handle is None:
            del self.requests[uid]
        else:
            self._end(req)
        self._check()
        return None

    def step(self) -> list[Reply]:
        """Run one step of the loop and return the replies it brought.

        Mutates: everything.
        Keeps:   every invariant; replied_once, released_once.
        Raises:  InvariantError, and whatever model or device raise. The state stays to be looked at until
                 the next operation, which ends every admitted request; no reply is lost.
        Spec:    05-prefill-and-chunking.md#schedule, 07-overlap.md#loop
        """
        self._begin()
        for reply in self._replies:
            self._record_reply(reply)
        self._has_failed = True
        self._launch_and_process()
        self._has_failed = False
        self._check()
        replies, self._replies = self._replies, []
        return replies

    def is_idle(self) -> bool:
        """Whether a step would have nothing to do."""
        return not (self.requests or self.in_flight or self._replies)

    def is_new(self) -> bool:
        """Whether nothing has been launched and nobody waits."""
        return not self._num_launched and self.is_idle()

    def reset(self) -> None:
        """Empty the cache; waiting requests stay.

        Raises: ContractError while a handle is locked.
        Spec:   03-locks-and-eviction.md#reset
        """
        self._begin()
        self.cache.reset()
        self._check()

    def view(self) -> EngineView:
        """Return a picture of everything, for judges and drawings."""
        return view_engine(self)

    def check_integrity(self) -> None:
        """Check every invariant of structure and ownership.

        Mutates: nothing.
        Raises:  InvariantError with the rules, the numbers and the drawing.
        """
        check_full(self.view())

    # -- submission --------------------------------------------------------------------------

    def _refusal_of(self, ids: Sequence[int], params: SamplingParams) -> Refusal | None:
        vocab_size = self.engine.model.config.vocab_size
        if not len(ids):
            return Refusal("empty_prompt", 0, 1)
        outside = next((token for token in ids if not 0 <= token < vocab_size), None)
        if outside is not None:
            return Refusal("token_out_of_range", outside, vocab_size)
        if params.max_tokens < 1:
            return Refusal("max_tokens_not_positive", params.max_tokens, 1)
        if params.temperature < 0:
            return Refusal("bad_temperature", params.temperature, 0)
        if params.top_k < 0:
            return Refusal("bad_top_k", params.top_k, 0)
        if not 0 < params.top_p <= 1:
            return Refusal("bad_top_p", params.top_p, 1)
        if len(ids) >= self.max_seq_len:
            return Refusal("prompt_too_long", len(ids), self.max_seq_len - 1)
        length = len(ids) + self._clamped(len(ids), params.max_tokens) - 1
        need = div_ceil(length, self.cache.page_size)
        return (
            Refusal("larger_than_pool", need, self.cache.num_pages) if need > self.cache.num_pages else None
        )

    def _clamped(self, prompt_len: int, max_tokens: int) -> int:
        return min(max_tokens, self.max_seq_len - prompt_len)

    # -- after a failure -----------------------------------------------------------------------

    def _begin(self) -> None:
        self.recorder.begin()
        if self._has_failed:
            self._give_up()

    def _give_up(self) -> None:
        """End every admitted request, and drop the batches in flight.

        What they were to write is not cached: written_len counts processed batches alone. Waiting
        requests stay. If the failure caught the host halfway through a change, the checks say so.

        Raises: InvariantError, but not at OFF.
        Keeps:  replied_once, released_once, pages_partitioned, rows_partitioned.
        Spec:   07-overlap.md#retired
        """
        self.in_flight.clear()
        self._give_back_retired(self._num_launched)
        for req in [req for req in self.requests.values() if req.handle is not None]:
            self.admitted.setdefault(req.uid, req)
            if req in self.prefill.waiting:
                self.prefill.remove(req)
            if req.phase != RETIRED:
                self._replies.append(Reply(req.uid, None, ABORT, req.admitted_len))
            req.in_flight.clear()
            self._end(req)
        self.engine.abandon(self._num_launched)
        if self.check_level >= CheckLevel.LOCAL:
            self.check_integrity()
        self._has_failed = False

    # -- one step ----------------------------------------------------------------------------

    def _launch_and_process(self) -> None:
        batch = self._schedule()
        if batch is not None:
            self._launch(batch)
        num_late = 1 if self.overlap and batch is not None else 0
        while len(self.in_flight) > num_late:
            self._process(*self.in_flight.pop(0))

    def _schedule(self) -> Batch | None:
        """Choose the next batch, prefill before decode, and take its pages.

        Nothing is launched while promised pages are retired: the batch in flight brings them back.

        Keeps: admitted_requests_fit.
        Spec:  05-prefill-and-chunking.md#schedule, 07-overlap.md#retired
        """
        page_size = self.cache.page_size
        reserved = sum(req.pages_needed(page_size) for req in self.admitted.values() if req.phase != RETIRED)
        if self.retired and reserved > self.cache.available_pages:
            return None
        chosen, admitted = self.prefill.schedule(reserved)
        for req in admitted:
            self.admitted[req.uid] = req
        phase = PREFILL if chosen else DECODE
        reqs = chosen or self.decode.schedule()
        if not reqs:
            return None
        self._allocate(reqs)
        self._num_launched += 1
        entries = tuple(
            BatchEntry(req, req.cached_len, req.device_len, req.device_len >= req.prompt_len) for req in reqs
        )
        return Batch(self._num_launched, phase, entries)

    def _allocate(self, reqs: list[Req]) -> None:
        """Take the pages a certain batch writes to; one eviction serves the whole batch.

        Mutates: the free list, the tree if pages are missing, the requests' rows.
        Keeps:   pages_partitioned, writes_are_private.
        Spec:    05-prefill-and-chunking.md#allocate
        """
        page_size = self.cache.page_size
        counts = [div_ceil(req.device_len, page_size) - len(req.pages) for req in reqs]
        pages = iter(self.cache.allocate(sum(counts)))
        for req, count in zip(reqs, counts, strict=True):  # before a write can fail: each page has its owner
            req.pages += islice(pages, count)
        if self.cache.last_evicted:
            self.recorder.record("evict", pages=list(self.cache.last_evicted))
        for req, count in zip(reqs, counts, strict=True):
            if count:
                taken = req.pages[-count:]
                self.engine.write_pages(req.row, len(req.pages) - count, taken)
                self.recorder.record("take", uid=req.uid, pages=taken)

    def _launch(self, batch: Batch) -> None:
        """Hand a batch to the device; lengths move at once, its result comes when it is processed."""
        result = self.engine.launch(batch)
        for entry in batch.entries:
            req = entry.req
            req.in_flight.append(batch.number)
            req.complete_one()
            if entry.sampled and req.phase == PREFILL:
                req.phase = DECODE
                self.decode.add(req)
        self.in_flight.append((batch, result))
        self.recorder.record(
            "launch",
            batch=batch.number,
            phase=batch.phase,
            requests=[[e.req.uid, e.cached_len, e.device_len, e.sampled] for e in batch.entries],
        )

    def _process(self, batch: Batch, result: Result) -> None:
        """Take in a batch's result: append tokens, end or cache requests, give pages back.

        Keeps: replied_once, released_once, pages_partitioned.
        Spec:  06-decode-and-release.md#process, 07-overlap.md#retired
        """
        tokens = self.engine.collect(result)
        self.recorder.record("process", batch=batch.number)
        with self.cache.batched_frees():
            self._give_back_retired(batch.number)
            for entry, token in zip(batch.entries, tokens, strict=True):
                req = entry.req
                req.in_flight.remove(batch.number)
                req.written_len = entry.device_len
                if req.phase == RETIRED:
                    self._end(req)
                elif entry.sampled:
                    self._replies.append(self._take_token(req, token, batch.phase))

    def _take_token(self, req: Req, token: int, phase: str) -> Reply:
        """Append an output; end the request with its last one, cache a prompt with its first."""
        req.append(token)
        reply = Reply(req.uid, token, req.finish_reason_after(token), req.admitted_len)
        self._record_reply(reply)
        if reply.finish_reason is not None:
            self._end(req)
        elif phase == PREFILL:
            self._cache_unfinished(req)
        return reply

    # -- caching and release -----------------------------------------------------------------

    def _cache_unfinished(self, req: Req) -> None:
        """Cache a computed prompt; point the row at the tree's pages where they were cached already.

        Mutates: the tree, the request's handle and row; gives the duplicates back.
        Keeps:   page_table_follows_handle, page_table_reads_live_pages.
        Spec:    06-decode-and-release.md#duplicates
        """
        # [0, old_len)           in the tree since admission; locked by our handle
        # [old_len, prefix_len)  duplicates: another request cached them first; ours to give back
        # [prefix_len, new_len)  newly cached by this call
        # [new_len, written_len) tail shorter than a page; stays private
        old = req.handle
        assert old is not None
        result = self.cache.insert(self._written_key(req), req.pages)
        self.cache.lock(result.handle)
        self.cache.unlock(old)
        req.handle = result.handle
        first, end = old.prefix_len // self.cache.page_size, result.prefix_len // self.cache.page_size
        duplicates = req.pages[first:end]
        if duplicates:
            req.pages[first:end] = result.handle.pages()[first:end]
            self.engine.write_pages(req.row, first, req.pages[first:end])
        self.recorder.record(
            "insert",
            uid=req.uid,
            insert_len=result.handle.prefix_len,
            prefix_len=result.prefix_len,
            duplicates=list(duplicates),
        )
        self._retire_or_give_back(req, duplicates)

    def _end(self, req: Req) -> None:
        """A request has had its terminal reply: release it, or mark it while a batch holds it."""
        self.decode.remove(req)
        if req.in_flight:
            req.phase = RETIRED
        else:
            self._release(req)

    def _release(self, req: Req) -> None:
        """Give back everything a request holds, exactly once, and cache what was computed.

        Mutates: the tree, the free pages, the free rows.
        Keeps:   released_once, pages_partitioned, rows_partitioned.
        Spec:    06-decode-and-release.md#release
        """
        old = req.handle
        assert old is not None
        result = self.cache.insert(self._written_key(req), req.pages)
        self.cache.unlock(old)
        page_size = self.cache.page_size
        duplicates = req.pages[old.prefix_len // page_size : result.prefix_len // page_size]
        tail = req.pages[result.handle.prefix_len // page_size :]
        self.cache.give_back([*duplicates, *tail])
        self.table.give_back(req.row)
        del self.requests[req.uid], self.admitted[req.uid]
        self.recorder.record(
            "release",
            uid=req.uid,
            row=req.row,
            insert_len=result.handle.prefix_len,
            prefix_len=result.prefix_len,
            given_up=[*duplicates, *tail],
        )

    def _retire_or_give_back(self, req: Req, pages: list[int]) -> None:
        """Give pages back, or keep them until the last batch in flight that may read them is processed."""
        if pages and req.in_flight:
            self.retired.append((req.in_flight[-1], pages))
        elif pages:
            self.cache.give_back(pages)

    def _give_back_retired(self, batch: int) -> None:
        for last, pages in self.retired:
            if last <= batch:
                self.cache.give_back(pages)
        self.retired = [(last, pages) for last, pages in self.retired if last > batch]

    def _written_key(self, req: Req) -> bytes:
        """Return the key of the positions that processed batches have written."""
        return bytes(req.key[: req.written_len * TOKEN_BYTES])

    # -- checks and events -------------------------------------------------------------------

    def _check(self) -> None:
        if self.check_level >= CheckLevel.FULL:
            self.check_integrity()

    def _record_reply(self, reply: Reply) -> None:
        self.recorder.record(
            "reply",
            uid=reply.uid,
            token=reply.token,
            finish_reason=reply.finish_reason,
            cached_len=reply.cached_len,
        )


def drain(scheduler: Scheduler) -> Iterable[Reply]:
    """Run steps until the scheduler is idle, and yield the replies."""
    while not scheduler.is_idle():
        yield from scheduler.step()
