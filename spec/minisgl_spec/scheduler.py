"""The scheduler: one step admits, allocates, launches a batch and processes a result.

In the normal loop a step processes the batch it launched. In the overlap loop it first launches
the next batch and then processes the one before, so one batch is always one step late: a request
that has ended may still be in flight, and its row and pages stay retired until that batch has
been processed.

The model is a function from tokens to the next token; nothing here knows KV, devices or streams.
Chapter: spec/05-prefill-and-chunking.md, spec/06-decode-and-release.md, spec/07-overlap.md
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from minisgl_spec import invariants
from minisgl_spec.admission import reserved_pages, take_chunk, try_admit
from minisgl_spec.cache import PrefixCache
from minisgl_spec.errors import Refusal
from minisgl_spec.messages import ABORT, Reply, Sampling
from minisgl_spec.page_pool import RowPool
from minisgl_spec.requests import Config, Request, Submission, accept, refusal_of
from minisgl_spec.trace import Json
from minisgl_spec.units import Page, Slot, Token, Uid, div_ceil, pages_to_slots, slots_to_pages
from minisgl_spec.views import DECODE, PREFILL, RETIRED, EngineView, InFlightView

NextToken = Callable[[tuple[Token, ...], Sampling, int, Uid], Token]
"""The model: (tokens so far, sampling, output index, uid) -> next token."""


@dataclass(frozen=True)
class BatchEntry:
    """One request of a batch, with the lengths it was launched with."""

    request: Request
    cached_len: int
    device_len: int
    sampled: bool  # False for a chunk that does not end its prompt
    out_loc: tuple[Slot, ...]


@dataclass(frozen=True)
class Batch:
    """A launched batch; batches are numbered in order of launch."""

    number: int
    phase: str
    entries: tuple[BatchEntry, ...]


@dataclass(frozen=True)
class Abort:
    """The message that ends a request."""

    uid: Uid


@dataclass(frozen=True)
class Outputs:
    """What one `Scheduler.step` answered."""

    refusals: tuple[tuple[Uid, Refusal], ...]
    replies: tuple[Reply, ...]
    inner: tuple[Json, ...]


class Scheduler:
    """The oracle of an engine: the same decisions, without a device."""

    def __init__(self, config: Config, next_token: NextToken) -> None:
        self.config = config
        self.next_token = next_token
        self.cache = PrefixCache(config.cache, config.page_size, config.num_pages)
        self.rows = RowPool(config.num_rows)
        self.waiting: list[Request] = []  # arrival order; an unfinished chunk is at the head
        self.admitted: list[Request] = []  # admission order, until released
        self.in_flight: list[Batch] = []  # launched, not processed
        self.retired: list[tuple[int, tuple[Page, ...]]] = []  # (last batch that may touch them, pages)
        self.replies: list[Reply] = []  # to be delivered by the next step
        self.num_launched = 0
        self.inner: list[Json] = []  # inner events of the operation under way

    # -- operations --------------------------------------------------------------------------

    def step(self, events: Iterable[Submission | Abort] = ()) -> Outputs:
        """Take in `events`, then run one step of the loop; say what came out.

        Mutates: everything; see the chapters.
        Keeps:   every invariant, replied_once, released_once.
        """
        inner: list[Json] = []
        refusals: list[tuple[Uid, Refusal]] = []
        for event in events:
            refusal = self.submit(event) if isinstance(event, Submission) else self.abort(event.uid)
            inner += self.inner
            if refusal is not None:
                refusals.append((event.uid, refusal))
        replies = self._run_once()
        return Outputs(tuple(refusals), replies, (*inner, *self.inner))

    def submit(self, submission: Submission) -> Refusal | None:
        """Queue a request, or refuse it and change nothing.

        Spec: 04-requests.md#refusal
        """
        self.inner = []
        # CHECK
        taken = {request.uid for request in self._live()} | {reply.uid for reply in self.replies}
        if submission.uid in taken:
            return Refusal("duplicate_uid", submission.uid, "one request per uid at a time")
        refusal = refusal_of(submission, self.config)
        if refusal is not None:
            return refusal
        # CHANGE
        self.waiting.append(accept(submission, self.config))
        return None

    def abort(self, uid: Uid) -> Refusal | None:
        """End a request: its terminal reply comes with the next step, no token after this call.

        A request in flight is only marked; it is released when its last batch is processed.

        Spec: 06-decode-and-release.md#abort
        """
        self.inner = []
        # FIND
        request = next((r for r in self._live() if r.uid == uid and r.phase != RETIRED), None)
        if request is None:
            return Refusal("unknown_uid", uid, "a request that has not ended")
        # CHANGE
        self.replies.append(Reply(uid, None, ABORT, request.admitted_len))
        if request in self.waiting:
            self.waiting.remove(request)
        if request.row is not None:
            self._give_pages(self._end(request))
        return None

    def reset(self) -> None:
        """Empty the cache; waiting requests stay.

        Raises: ContractError while a handle is locked.
        """
        self.inner = []
        self.cache.reset()

    def is_idle(self) -> bool:
        """Whether a step would have nothing to do."""
        return not (self.waiting or self.admitted or self.in_flight or self.replies)

    # -- one step ----------------------------------------------------------------------------

    def _run_once(self) -> tuple[Reply, ...]:
        self.inner = []
        replies, self.replies = self.replies, []
        for reply in replies:
            self._log_reply(reply)
        batch = self._schedule()
        if batch is not None:
            self._launch(batch)
        late = 1 if self.config.overlap and batch is not None else 0
        while len(self.in_flight) > late:
            replies += self._process(self.in_flight.pop(0))
        return tuple(replies)

    def _schedule(self) -> Batch | None:
        """Choose the next batch, prefill before decode, and take its pages.

        While pages that admitted requests were promised are retired, nothing is launched: they come
        back when the batch in flight has been processed.

        Keeps: admitted_requests_fit.
        Spec:  05-prefill-and-chunking.md#schedule, 07-overlap.md#retired
        """
        if self.retired and self.reserved_pages() > self.cache.available_pages:
            return None
        requests, phase = self._choose_prefill(), PREFILL
        if not requests:
            requests = [r for r in self.admitted if r.phase == DECODE and r.can_decode]
            phase = DECODE
        if not requests:
            return None
        self._allocate(requests)
        self.num_launched += 1
        return Batch(self.num_launched, phase, tuple(self._entry(request) for request in requests))

    def _choose_prefill(self) -> list[Request]:
        """Walk the line until budget, rows or pages run out; an unfinished chunk returns to its head."""
        budget, chosen = self.config.token_budget, list[Request]()
        for request in self.waiting:
            if budget == 0:
                break
            if request.row is None:
                if not try_admit(request, self.admitted, self.cache, self.rows, self.inner):
                    break
                self.admitted.append(request)
            budget -= take_chunk(request, budget)
            chosen.append(request)
        unfinished = [request for request in chosen if request.device_len < request.prompt_len]
        self.waiting = unfinished + self.waiting[len(chosen) :]
        return chosen

    def _allocate(self, requests: list[Request]) -> None:
        """Take the pages a certain batch writes to; one eviction serves the whole batch.

        Keeps: pages_partitioned, writes_are_private.
        Spec:  05-prefill-and-chunking.md#allocate
        """
        page_size = self.config.page_size
        counts = [div_ceil(r.device_len, page_size) - len(r.row_slots) // page_size for r in requests]
        pages, evicted = self.cache.allocate(sum(counts))
        if evicted:
            self.inner.append({"do": "evict", "pages": list(evicted)})
        for request, count in zip(requests, counts, strict=True):
            taken, pages = pages[:count], pages[count:]
            if taken:
                request.row_slots += pages_to_slots(taken, page_size)
                self.inner.append({"do": "take", "uid": request.uid, "pages": list(taken)})

    def _entry(self, request: Request) -> BatchEntry:
        return BatchEntry(
            request=request,
            cached_len=request.cached_len,
            device_len=request.device_len,
            sampled=request.device_len >= request.prompt_len,
            out_loc=request.row_slots[request.cached_len : request.device_len],
        )

    def _launch(self, batch: Batch) -> None:
        """Hand a batch to the device; lengths move at once, results come when it is processed."""
        for entry in batch.entries:
            entry.request.batches.append(batch.number)
            entry.request.phase = DECODE if entry.sampled else PREFILL
            entry.request.complete_one()
        self.in_flight.append(batch)
        self.inner.append(
            {
                "do": "launch",
                "batch": batch.number,
                "phase": batch.phase,
                "requests": [[e.request.uid, e.cached_len, e.device_len, e.sampled] for e in batch.entries],
            }
        )

    def _process(self, batch: Batch) -> list[Reply]:
        """Take in the result of a batch: append tokens, end or cache requests, give pages back.

        Spec: 06-decode-and-release.md#process, 07-overlap.md
        """
        self.inner.append({"do": "process", "batch": batch.number})
        given = [page for last, pages in self.retired if last <= batch.number for page in pages]
        self.retired = [(last, pages) for last, pages in self.retired if last > batch.number]
        replies: list[Reply] = []
        for entry in batch.entries:
            request = entry.request
            request.batches.remove(batch.number)
            request.written_len = entry.device_len
            if request.phase == RETIRED:
                if not request.batches:
                    given += self._release(request)
            elif entry.sampled:
                replies.append(self._append_token(request))
                if replies[-1].finish_reason is not None:
                    given += self._end(request)
                elif batch.phase == PREFILL:
                    given += self._cache_unfinished(request)
        self._give_pages(given)
        return replies

    def _append_token(self, request: Request) -> Reply:
        token = self.next_token(request.ids, request.submission.sampling, request.output_len, request.uid)
        request.ids += (token,)
        reason = request.finish_reason_after(token, self.config.eos_ids)
        reply = Reply(request.uid, token, reason, request.admitted_len)
        self._log_reply(reply)
        return reply

    def _log_reply(self, reply: Reply) -> None:
        self.inner.append(
            {
                "do": "reply",
                "uid": reply.uid,
                "token": reply.token,
                "finish_reason": reply.finish_reason,
                "cached_len": reply.cached_len,
            }
        )

    # -- caching and release -----------------------------------------------------------------

    def _cache_unfinished(self, request: Request) -> list[Page]:
        """Cache a prompt that has been computed; point the row at the tree where it already was cached.

        Returns: the duplicate pages, to be given back.
        Mutates: the request's handle, now on the whole prompt's pages, and its row.
        Keeps:   page_table_follows_handle, page_table_reads_live_pages.
        Spec:    06-decode-and-release.md#duplicates
        """
        # [0, old_len)           in the tree since admission; locked by our handle
        # [old_len, prefix_len)  duplicates: another request cached them first; ours to give back
        # [prefix_len, new_len)  newly cached by this call
        # [new_len, written_len) tail shorter than a page; stays private
        old = request.handle
        assert old is not None
        written = request.written_len
        result = self.cache.tree.insert_prefix(request.ids[:written], request.row_slots[:written])
        self.cache.tree.lock(result.handle)
        self.cache.tree.unlock(old)
        duplicates = self._pages(request.row_slots[old.prefix_len : result.prefix_len])
        new_len = result.handle.prefix_len
        request.row_slots = result.handle.slots() + request.row_slots[new_len:]
        request.handle = result.handle
        self.inner.append(
            {
                "do": "insert",
                "uid": request.uid,
                "insert_len": new_len,
                "prefix_len": result.prefix_len,
                "duplicates": list(duplicates),
            }
        )
        return self._retire_or_give(request, duplicates)

    def _end(self, request: Request) -> list[Page]:
        """A request has had its terminal reply: release it, or mark it while a batch holds it."""
        if request.batches:
            request.phase = RETIRED
            return []
        return self._release(request)

    def _release(self, request: Request) -> list[Page]:
        """Give back everything a request holds, exactly once, caching what was computed.

        Returns: the pages to give back: duplicates first, then all the tree did not take.
        Keeps:   released_once, pages_partitioned, rows_partitioned.
        Spec:    06-decode-and-release.md#release
        """
        assert request.handle is not None
        assert request.row is not None
        written = request.written_len
        result = self.cache.tree.insert_prefix(request.ids[:written], request.row_slots[:written])
        self.cache.tree.unlock(request.handle)
        duplicates = self._pages(request.row_slots[request.handle.prefix_len : result.prefix_len])
        tail = self._pages(request.row_slots[result.handle.prefix_len :])
        self.rows.give(request.row)
        self.admitted.remove(request)
        self.inner.append(
            {
                "do": "release",
                "uid": request.uid,
                "row": request.row,
                "insert_len": result.handle.prefix_len,
                "prefix_len": result.prefix_len,
                "given_up": [*duplicates, *tail],
            }
        )
        return [*duplicates, *tail]

    def _retire_or_give(self, request: Request, pages: tuple[Page, ...]) -> list[Page]:
        """Return pages that may be given back now; keep those a batch in flight may still read."""
        if pages and request.batches:
            self.retired.append((request.batches[-1], pages))
            return []
        return list(pages)

    def _give_pages(self, pages: list[Page]) -> None:
        self.cache.pool.give(pages)

    def _pages(self, slots: tuple[Slot, ...]) -> tuple[Page, ...]:
        return slots_to_pages(slots, self.config.page_size)

    def _live(self) -> list[Request]:
        return self.admitted + [request for request in self.waiting if request.row is None]

    # -- pictures ----------------------------------------------------------------------------

    def sizes(self) -> Json:
        """Return the sizes that every step's event carries."""
        return {
            "free_pages": len(self.cache.pool.free_pages),
            "evictable_size": self.cache.tree.evictable_size,
            "protected_size": self.cache.tree.protected_size,
            "num_waiting": len([request for request in self.waiting if request.row is None]),
            "num_running": len(self.admitted),
        }

    def reserved_pages(self) -> int:
        """Return the pages promised to admitted requests and not taken yet."""
        return reserved_pages(self.admitted, self.config.page_size)

    def view(self) -> EngineView:
        """Return a picture of everything."""
        return EngineView(
            cache=self.cache.tree.view(),
            page_size=self.config.page_size,
            num_pages=self.config.num_pages,
            num_rows=self.config.num_rows,
            row_width=self.config.row_width,
            free_pages=self.cache.pool.free_pages,
            retired_pages=tuple(page for _, pages in self.retired for page in pages),
            free_rows=self.rows.free_rows,
            requests=tuple(request.view() for request in self._live()),
            in_flight=tuple(
                InFlightView(
                    batch=batch.number,
                    uid=entry.request.uid,
                    row=entry.request.row if entry.request.row is not None else -1,
                    cached_len=entry.cached_len,
                    device_len=entry.device_len,
                    out_loc=entry.out_loc,
                )
                for batch in self.in_flight
                for entry in batch.entries
            ),
        )

    def check_integrity(self) -> None:
        """Raise `InvariantError` if a rule of structure or ownership is broken."""
        invariants.check(self.view())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scheduler) and self._state() == other._state()

    def __hash__(self) -> int:
        return hash(self._state())

    def _state(self) -> tuple[object, ...]:
        submissions = tuple((request.submission, request.admitted_len) for request in self._live())
        retired = tuple(self.retired)
        tick = (self.cache.tree.tick, self.cache.tree.num_created, self.num_launched)
        return (self.config, self.view(), submissions, retired, tuple(self.replies), tick)


def step(state: Scheduler, events: Iterable[Submission | Abort]) -> tuple[Scheduler, Outputs]:
    """Return the state after one step on a copy, and what came out; `state` is left as it is."""
    memo = {id(state.next_token): state.next_token}
    after = copy.deepcopy(state, memo)
    return after, after.step(events)
