"""Level `cache`: the runner plays the page allocator and the model that writes KV.

It owns the pool's free pages, hands fresh ones to insertions and takes back duplicates, tails and
what was evicted. `CachedPrefixes`, a plain dict, says what the cache must hold; shadow memory says
which tokens each slot was written with. Between two operations every page is free or cached.

A handle is stale for good once its prefix was evicted: a target may refuse to lock it, or lock what
was cached again since.
Chapter: spec/02-radix-tree.md, spec/03-locks-and-eviction.md
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minisgl_conformance import boundary, targets
from minisgl_conformance import marks as situations
from minisgl_conformance.runner import Runner
from minisgl_conformance.targets import MakeTarget
from minisgl_spec import contracts, invariants
from minisgl_spec.cache import TREES
from minisgl_spec.contracts import CachedPrefixes
from minisgl_spec.errors import ContractError, Violation
from minisgl_spec.shadow import ShadowMemory
from minisgl_spec.trace import Json
from minisgl_spec.units import align_down, div_ceil, pages_to_slots
from minisgl_spec.views import CacheView, EngineView

Tokens = tuple[int, ...]
SKIPPED_NO_PAGES, SKIPPED_NOT_CLAIMED = "no_pages", "not_claimed"
"""Why an operation was not run: the pool is empty; the target does not claim it."""


@dataclass
class RunnerHandle:
    """A handle as the runner knows it, beside the target's and the oracle's own."""

    ids: Tokens
    theirs: Any
    oracles: Any
    is_locked: bool = False
    is_stale: bool = False


class CacheRunner(Runner):
    """One program of match, insert, lock, unlock, evict and reset."""

    level = targets.CACHE
    view_type = CacheView

    def __init__(
        self,
        make_target: MakeTarget,
        config: Mapping[str, Any],
        judges: Collection[str] = invariants.JUDGES,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(make_target, config, judges, origin)
        self.page_size: int = config["page_size"]
        self.num_pages: int = config["num_pages"]
        self.is_naive = config.get("cache", "radix") == "naive"
        self.free_pages: list[int] = list(range(self.num_pages))
        self.cached = CachedPrefixes(self.page_size)
        self.shadow = ShadowMemory()
        self.num_written = 0  # slots, in all
        self._clean: tuple[CacheView | None, Any] = (None, None)  # judged last, if nothing was wrong
        self.handles: list[RunnerHandle] = []
        self.given_slots: dict[int, tuple[int, ...]] = {}  # to insertions, by operation
        self.oracle = TREES[config.get("cache", "radix")](self.page_size) if self.is_exact else None
        self._oracles_view = self.oracle.view() if self.oracle is not None else None  # as it was last
        self.refuses = targets.claims(self.target, targets.REFUSALS)
        self.sizes: tuple[int, int] = (0, 0)  # as the target told them last
        self.start()

    # -- operations --------------------------------------------------------------------------

    def _run(self, op: Json) -> Json:
        operations = {
            "match": self._match,
            "insert": self._insert,
            "lock": self._lock,
            "unlock": self._unlock,
            "evict": self._evict,
            "reset": self._reset,
        }
        if op["op"] not in operations:
            raise ContractError("apply", f"an operation of {tuple(operations)}", {"op": repr(op["op"])})
        return operations[op["op"]](op)

    def _match(self, op: Json) -> Json:
        ids = tuple(op["ids"])
        answer = self._call("match_prefix", self.target.match_prefix, ids)
        theirs, prefix_len, slots = boundary.parts("match_prefix", answer, ("handle", "prefix_len", "slots"))
        prefix_len = boundary.whole("match_prefix, prefix_len", prefix_len)
        slots = boundary.wholes("match_prefix, slots", slots)
        self._hold(contracts.match_is_longest, self.cached, ids, prefix_len)
        self._hold(contracts.match_returns_cached_slots, self.cached, ids, prefix_len, slots)
        self._read(ids, slots)
        oracles = None
        if self.oracle is not None:
            oracles = self.oracle.match_prefix(ids)
            self._compare("match_prefix", (prefix_len, slots), (oracles.prefix_len, oracles.slots()))
        handle_idx = self._add_handle(ids[:prefix_len], theirs, oracles)
        return self._event(op, handle=handle_idx, prefix_len=prefix_len, slots=list(slots))

    def _insert(self, op: Json) -> Json:
        ids = tuple(op["ids"])
        own = self._own_prefix(ids, op.get("handle"))
        fresh = div_ceil(len(ids) - len(own), self.page_size)
        if fresh > len(self.free_pages):
            return {"event": "insert", "skipped": SKIPPED_NO_PAGES}
        pages, self.free_pages = self.free_pages[:fresh], self.free_pages[fresh:]
        slots = own + pages_to_slots(pages, self.page_size)[: len(ids) - len(own)]
        self._write(ids, slots, len(own))
        given = slots[: max(0, len(slots) - op.get("drop_slots", 0))]
        self.given_slots[len(self.ops) - 1] = given
        if op.get("drop_slots", 0):
            return self._insert_too_few(op, ids, given, pages)
        answer = self._call("insert_prefix", self.target.insert_prefix, ids, slots)
        prefix_len, theirs = boundary.parts("insert_prefix", answer, ("prefix_len", "handle"))
        prefix_len = boundary.whole("insert_prefix, prefix_len", prefix_len)
        oracles = self.oracle.insert_prefix(ids, slots) if self.oracle is not None else None
        if oracles is not None:
            self._compare("insert_prefix", prefix_len, oracles.prefix_len)
        whole = align_down(len(ids), self.page_size)
        # What its handle covers is not shown: `sizes_add_up` judges that when the handle is locked.
        self._hold(contracts.insert_reports_prefix, self.cached, ids, prefix_len)
        if self.is_naive:
            self.free_pages += pages
            covered: Tokens = ()
        else:
            self.cached.insert(ids, slots)
            covered = ids[:whole]
            if not self._found:
                self._give_back(slots, len(own), prefix_len, whole)
        handle_idx = self._add_handle(covered, theirs, oracles.handle if oracles is not None else None)
        return self._event(op, handle=handle_idx, prefix_len=prefix_len, slots=list(slots))

    def _insert_too_few(self, op: Json, ids: Tokens, slots: Sequence[int], pages: Sequence[int]) -> Json:
        """Insert with a slot missing: a mistake that has to be refused."""
        self.free_pages = [*pages, *self.free_pages]
        if not self.refuses:
            return {"event": "insert", "skipped": SKIPPED_NOT_CLAIMED}
        _, need = self._attempt("insert_prefix", self.target.insert_prefix, ids, slots)
        return self._refusal(op, need, is_mistake=True)

    def _lock(self, op: Json) -> Json:
        handle = self._handle(op)
        is_mistake = handle.is_locked
        if self.oracle is not None:
            is_mistake = is_mistake or handle.oracles.node not in self.oracle.nodes
        if (is_mistake or handle.is_stale) and not self.refuses:
            return {"event": "lock", "skipped": SKIPPED_NOT_CLAIMED}
        _, need = self._attempt("lock", self.target.lock, handle.theirs)
        if need is not None or is_mistake:
            return self._refusal(op, need, is_mistake=is_mistake or handle.is_stale)
        if handle.ids and handle.ids not in self.cached.slots:
            self._hold(
                contracts.mistakes_are_refused, f"lock of {handle.ids}, which was evicted,", None, True
            )
            return self._event(op)
        if self.oracle is not None:
            self.oracle.lock(handle.oracles)
        handle.is_locked = True
        self._count_lock(handle.ids, 1)
        return self._event(op)

    def _unlock(self, op: Json) -> Json:
        handle = self._handle(op)
        if not handle.is_locked and not self.refuses:
            return {"event": "unlock", "skipped": SKIPPED_NOT_CLAIMED}
        _, need = self._attempt("unlock", self.target.unlock, handle.theirs)
        if need is not None or not handle.is_locked:
            return self._refusal(op, need, is_mistake=not handle.is_locked)
        if self.oracle is not None:
            self.oracle.unlock(handle.oracles)
        handle.is_locked = False
        self._count_lock(handle.ids, -1)
        return self._event(op)

    def _evict(self, op: Json) -> Json:
        size = op["size"]
        is_mistake = not 0 <= size <= self.evictable_size()
        if is_mistake and not self.refuses:
            return {"event": "evict", "skipped": SKIPPED_NOT_CLAIMED}
        slots, need = self._attempt("evict", self.target.evict, size)
        if need is not None or is_mistake:
            return self._refusal(op, need, is_mistake)
        slots = boundary.wholes("evict", slots)
        self._hold(contracts.evict_frees_enough, self.cached, size, slots)
        self._hold(contracts.evict_leaves_first, self.cached, slots)
        pages = self._whole_pages(slots)
        if self.oracle is not None:
            if self.view is not None:
                self._hold(contracts.evict_takes_oldest_leaf, self.view, slots)
            self._compare("evict", slots, self.oracle.evict(size))
        self.cached.remove(slots)
        self.free_pages += [page for page in pages if page not in self.free_pages]
        self._age_handles()
        return self._event(op, slots=list(slots))

    def _reset(self, op: Json) -> Json:
        if not targets.claims(self.target, targets.RESET):
            return {"event": "reset", "skipped": SKIPPED_NOT_CLAIMED}
        is_mistake = any(handle.is_locked for handle in self.handles)
        if is_mistake and not self.refuses:
            return {"event": "reset", "skipped": SKIPPED_NOT_CLAIMED}
        _, need = self._attempt("reset", self.target.reset)
        if need is not None or is_mistake:
            return self._refusal(op, need, is_mistake)
        if self.oracle is not None:
            self.oracle.reset()
        slots = {slot for page in self.cached.slots.values() for slot in page}
        self.free_pages += sorted({slot // self.page_size for slot in slots})
        self.cached.slots.clear()
        self._age_handles()
        return self._event(op)

    # -- judging -----------------------------------------------------------------------------

    def _judge_view(self) -> None:
        if self.view is not None:
            self._judge_cache(self.view)
        self.sizes = self._sizes()
        if not self._found:  # else the model of what is cached has lost its meaning
            self._hold(contracts.sizes_add_up, self.cached, *self.sizes, self.is_exact)
        if self.events and "sizes" in self.events[-1]:
            self.events[-1]["sizes"] = list(self.sizes)
        if self.oracle is not None:
            if not (self.events and self.events[-1].keys() & {"refused", "skipped"}):
                self._oracles_view = self.oracle.view()  # else it was not asked
            self._compare("view", self.view, self._oracles_view)

    def _judge_cache(self, view: CacheView) -> None:
        """Hold a view to the invariants, with the pages that are free and what was written.

        An invariant is a function of these alone: if all was clean and they are what they were, all is clean.
        """
        pages_and_slots = (tuple(self.free_pages), self.num_written)
        is_clean = view == self._clean[0]
        if is_clean and pages_and_slots == self._clean[1]:
            return
        if not is_clean:
            self._found += invariants.violations(view, self.judges)
        if invariants.OWNERSHIP in self.judges:  # the other rules of an engine speak of requests and rows
            self._hold(invariants.pages_partitioned, self._with_pages(view))
        if invariants.CONTENT in self.judges:
            self._hold(invariants.slots_hold_their_tokens, invariants.ContentView(view, (), self.shadow))
        self._clean = (None, None) if self._found else (view, pages_and_slots)

    def _with_pages(self, view: CacheView) -> EngineView:
        """Return the view of an engine without requests: every page of it is free, or cached once."""
        return EngineView(
            cache=view,
            page_size=self.page_size,
            num_pages=self.num_pages,
            num_rows=0,
            row_width=0,
            free_pages=tuple(self.free_pages),
            retired_pages=(),
            free_rows=(),
            requests=(),
            in_flight=(),
        )

    def _mark(self, op: Json, event: Json, before: CacheView | None) -> None:
        situations.mark_cache(self, op, event, before)

    def _read(self, ids: Tokens, slots: Sequence[int]) -> None:
        if invariants.CONTENT not in self.judges:
            return
        prefix = self.shadow.EMPTY
        for position, (token, slot) in enumerate(zip(ids, slots, strict=False)):
            prefix = self.shadow.extend(prefix, token)
            if self.shadow.read(slot) != prefix:
                found = self.shadow.describe_mismatch(slot, prefix)
                self._hold(contracts.reads_hold_their_prefix, 0, position, slot, found)

    def _write(self, ids: Tokens, slots: Sequence[int], start: int) -> None:
        prefix = self.shadow.prefix(ids[:start])
        for token, slot in zip(ids[start:], slots[start:], strict=True):
            prefix = self.shadow.extend(prefix, token)
            self.shadow.write(slot, prefix)
        self.num_written += len(ids) - start

    def evictable_size(self) -> int:
        """Return the slots that may be evicted: a lock may protect more than its prefix unless exact."""
        return self.cached.sizes()[0] if self.is_exact else self.sizes[0]

    def _sizes(self) -> tuple[int, int]:
        answer = self._call("sizes", self.target.sizes)
        evictable, protected = boundary.parts("sizes", answer, ("evictable_size", "protected_size"))
        return boundary.whole("sizes, evictable_size", evictable), boundary.whole(
            "sizes, protected_size", protected
        )

    # -- the allocator -----------------------------------------------------------------------

    def _own_prefix(self, ids: Tokens, handle_idx: int | None) -> tuple[int, ...]:
        """Return the slots that a locked handle lends to an insertion of `ids`."""
        if handle_idx is None:
            return ()
        handle = self._handle({"handle": handle_idx})
        if not handle.is_locked or ids[: len(handle.ids)] != handle.ids:
            return ()
        return self.cached.slots_of(handle.ids)

    def _give_back(self, slots: Sequence[int], own_len: int, prefix_len: int, whole: int) -> None:
        """Take back what the tree had already, and the tail that is shorter than a page."""
        duplicates = slots[own_len : prefix_len : self.page_size]
        tail = slots[whole :: self.page_size]
        self.free_pages += [slot // self.page_size for slot in (*duplicates, *tail)]

    def _whole_pages(self, slots: Sequence[int]) -> list[int]:
        """Return the pages of evicted slots; a page must come back whole."""
        pages = list(dict.fromkeys(slot // self.page_size for slot in slots))
        parts = [page for page in pages if not set(pages_to_slots([page], self.page_size)) <= set(slots)]
        if parts:
            fact = f"evict returned slots {tuple(slots)}: only a part of pages {parts}"
            self._found.append(Violation("slots_are_whole_pages", fact))
        return pages

    def _add_handle(self, ids: Tokens, theirs: Any, oracles: Any) -> int:
        self.handles.append(RunnerHandle(ids, theirs, oracles))
        return len(self.handles) - 1

    def _handle(self, op: Json) -> RunnerHandle:
        if not 0 <= op["handle"] < len(self.handles):
            raise ContractError(
                "apply",
                "a handle that an earlier operation made",
                {"handle": op["handle"], "handles": len(self.handles), "step": len(self.ops)},
            )
        return self.handles[op["handle"]]

    def _count_lock(self, ids: Tokens, change: int) -> None:
        if ids:
            self.cached.locked[ids] += change

    def _age_handles(self) -> None:
        for handle in self.handles:
            if handle.ids and handle.ids not in self.cached.slots:
                handle.is_stale = True

    # -- events ------------------------------------------------------------------------------

    def _event(self, op: Json, **answer: Any) -> Json:
        return {"event": op["op"], **answer, "sizes": []}

    def _refusal(self, op: Json, need: str | None, is_mistake: bool) -> Json:
        """Hold a refusal, or a mistake that was accepted, to the contract, and the state to what it was."""
        self._hold(contracts.mistakes_are_refused, f"{op['op']} {_arguments(op)}", need, is_mistake)
        if need is None:
            return self._event(op)
        self._hold_unchanged()
        return self._event(op, refused=need)


def _arguments(op: Json) -> str:
    return " ".join(f"{name}={value}" for name, value in op.items() if name != "op")
