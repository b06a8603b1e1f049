"""Variants: engines that are right and not like ours, so that a judge can be shown to let them pass.

A variant changes the same source a fault would, and decides differently within what the rules permit:
other victims, other page numbers, other orders, frees that come later. It does not claim the oracle's
decisions. With one fault of the zoo added it is wrong again, and found.

Nothing here is ours to serve with. Chapter: spec/deviations.md
"""

from __future__ import annotations

from dataclasses import dataclass

from minisgl_ref.zoo import FAULTS
from minisgl_ref.zoo.fault import CACHE, ENGINE, Edit, Fault

RADIX = "minisgl_ref.kvcache.radix_cache"
BASE = "minisgl_ref.kvcache.base"
CACHE_MANAGER = "minisgl_ref.scheduler.cache"
TABLE = "minisgl_ref.scheduler.table"
PREFILL = "minisgl_ref.scheduler.prefill"
SCHEDULER = "minisgl_ref.scheduler.scheduler"
ENGINE_MODULE = "minisgl_ref.engine.engine"

BOTH = (CACHE, ENGINE)


@dataclass(frozen=True, slots=True)
class Variant:
    """A right engine that decides otherwise.

    levels: where it differs from ours, so where it has to pass.
    wrong:  the fault of the zoo that is added to show that the judges still look.
    """

    name: str
    edits: tuple[Edit, ...]
    sentence: str
    wrong: str
    levels: tuple[str, ...] = (ENGINE,)

    def right(self, level: str) -> Fault:
        """Return the change of source, in the form that `fault.load` takes."""
        return Fault(self.name, self.edits, "", "", self.sentence, level)

    def with_fault(self) -> Fault:
        """Return the variant with its fault; its rule and level are the fault's."""
        fault = FAULTS[self.wrong]
        edits = (*self.edits, *fault.edits)
        return Fault(
            f"{self.name} and {fault.name}", edits, fault.rule, fault.undoes, fault.sentence, fault.level
        )


NO_NEWER_TICK = Edit(
    RADIX,
    """\
            elif entry >> ID_BITS != node.last_used:
                heapreplace(queue, node.last_used << ID_BITS | node.node_id)
""",
    "",
)
"""A queue whose entries keep the place they were given."""

TREES = (
    Variant(
        name="a_node_for_every_page",
        edits=(
            Edit(
                RADIX,
                """\
        if start < end:
            first_page = start // self._page_bytes
            leaf = Node(
                node, key[start:end], list(pages[first_page:num_pages]), self._tick, self._next_node_id
            )
""",
                """\
        found = start
        while start < end:
            first_page = start // self._page_bytes
            part = key[start : start + self._page_bytes]
            leaf = Node(node, part, [pages[first_page]], self._tick, self._next_node_id)
""",
            ),
            Edit(
                RADIX,
                "self.evictable_size += (num_pages - first_page) * page_size",
                "self.evictable_size += page_size",
            ),
            Edit(
                RADIX,
                "            node = leaf\n        return InsertResult(start // TOKEN_BYTES,",
                "            node = leaf\n"
                "            start += self._page_bytes\n"
                "        return InsertResult(found // TOKEN_BYTES,",
            ),
        ),
        sentence="An insertion makes one node per page, so that nothing is ever split.",
        wrong="eviction_takes_a_locked_parent",
        levels=BOTH,
    ),
    Variant(
        name="splits_when_locked",
        edits=(
            Edit(
                BASE,
                '    __slots__ = ("cache", "is_locked", "node", "prefix_len")',
                '    __slots__ = ("cache", "is_locked", "key", "node", "prefix_len")',
            ),
            Edit(
                BASE,
                "        self.is_locked = False\n",
                '        self.is_locked = False\n        self.key = b""\n',
            ),
            Edit(
                BASE,
                "            return node.pages.copy()\n",
                "            return node.pages[: self.prefix_len // self.cache.page_size]\n",
            ),
            Edit(
                BASE,
                "        return pages\n",
                "        return pages[: self.prefix_len // self.cache.page_size]\n",
            ),
            Edit(
                RADIX,
                "        node, length = self._descend(key)\n"
                "        return Handle(self, node, length // TOKEN_BYTES)\n",
                """\
        node, length = self._descend(key, splits=False)
        handle = Handle(self, node, length // TOKEN_BYTES)
        handle.key = key[:length]
        return handle
""",
            ),
            Edit(
                RADIX,
                "    def _descend(self, key: bytes) ->",
                """\
    def _holds(self, key: bytes) -> bool:
        node = self._root
        while key and (child := node.children.get(key[: self._page_bytes])):
            shared = self._compare(child.key, key) // self.page_size * self._page_bytes
            if shared < len(child.key):
                return shared == len(key)
            node, key = child, key[shared:]
        return not key

    def _descend(self, key: bytes, splits: bool = True) ->""",
            ),
            Edit(
                RADIX,
                "            return self._split(node, num_pages), start + num_pages * page_bytes\n",
                "            ends = self._split(node, num_pages) if splits else node\n"
                "            return ends, start + num_pages * page_bytes\n",
            ),
            Edit(
                RADIX,
                "        node: Node | None = handle.node\n        if handle.is_locked",
                """\
        if handle.key and not handle.is_locked:
            if self._holds(handle.key):
                handle.node, _ = self._descend(handle.key)
            else:
                handle.node = Node(None, b"", [], 0, 0)
                handle.node.in_tree = False
        node: Node | None = handle.node
        if handle.is_locked""",
            ),
        ),
        sentence="A match that ends inside a node leaves it whole; the lock looks again, and splits it.",
        wrong="split_forgets_the_lock",
        levels=BOTH,
    ),
    Variant(
        name="first_made_first_evicted",
        edits=(
            Edit(
                RADIX,
                "heappush(self._queue, node.last_used << ID_BITS | node.node_id)",
                "heappush(self._queue, node.node_id)",
            ),
            NO_NEWER_TICK,
        ),
        sentence="Victims are leaves in the order in which they were made, whenever they were used.",
        wrong="eviction_ignores_locks",
        levels=BOTH,
    ),
    Variant(
        name="any_leaf_is_evicted",
        edits=(
            Edit(
                RADIX,
                "heappush(self._queue, node.last_used << ID_BITS | node.node_id)",
                "heappush(self._queue, node.node_id * 389 % 1009 << ID_BITS | node.node_id)",
            ),
            NO_NEWER_TICK,
        ),
        sentence="Victims are evictable leaves in no order.",
        wrong="evicted_leaf_is_not_unlinked",
        levels=BOTH,
    ),
    Variant(
        name="last_page_of_a_leaf_is_evicted",
        edits=(
            Edit(
                RADIX,
                "            else:\n                heappop(queue)\n",
                """\
            elif len(node.pages) > 1:
                pages.append(node.pages.pop())
                node.key = node.key[: -self._page_bytes]
            else:
                heappop(queue)
""",
            ),
            Edit(
                RADIX,
                "if handle.is_locked or handle.cache is not self or not handle.node.in_tree:",
                "length = sum(len(above.pages) for above in handle.node.path()) * self.page_size\n"
                "        is_whole = handle.node.in_tree and length == handle.prefix_len\n"
                "        if handle.is_locked or handle.cache is not self or not is_whole:",
            ),
        ),
        sentence="Eviction takes single pages from the end of a leaf, and the node only with its last one.",
        wrong="unlock_stops_below_the_root",
        levels=BOTH,
    ),
    Variant(
        name="whole_branches_are_evicted",
        edits=(
            Edit(
                RADIX,
                "        while len(pages) < num_pages:\n            entry = queue[0]\n",
                """\
        while len(pages) < num_pages:
            tops = [
                child
                for above in self._nodes()
                if above is self._root or above.ref_count
                for child in above.children.values()
                if not child.ref_count
            ]
            branch = [min(tops, key=lambda top: top.last_used)]
            for below in branch:
                branch.extend(below.children.values())
            for below in reversed(branch):
                pages += below.pages
                self._remove_leaf(below)
                self._queued.pop(below.node_id, None)
            self._queue[:] = sorted(self._queued[e & ID_MASK].last_used << ID_BITS | e & ID_MASK
                                    for e in self._queue if e & ID_MASK in self._queued)
            continue
            entry = queue[0]
""",
            ),
        ),
        sentence="Eviction takes a node that nobody has locked with everything below it.",
        wrong="evicted_leaf_still_counts",
        levels=BOTH,
    ),
    Variant(
        name="twice_as_much_is_evicted",
        edits=(
            Edit(
                RADIX,
                "num_pages = div_ceil(size, self.page_size)",
                "num_pages = min(2 * div_ceil(size, self.page_size), self.evictable_size // self.page_size)",
            ),
        ),
        sentence="Eviction takes twice what it is asked for, if it can.",
        wrong="surplus_of_an_eviction_is_lost",
        levels=BOTH,
    ),
    Variant(
        name="everything_is_evicted",
        edits=(
            Edit(
                RADIX,
                "num_pages = div_ceil(size, self.page_size)",
                "num_pages = self.evictable_size // self.page_size if size else 0",
            ),
        ),
        sentence="An eviction takes all that is evictable.",
        wrong="reset_keeps_its_size",
        levels=BOTH,
    ),
)

MANAGERS = (
    Variant(
        name="other_page_numbers",
        edits=(
            Edit(
                CACHE_MANAGER,
                "self.free_pages = deque(range(num_pages))",
                "self.free_pages = deque(sorted(range(num_pages), key=lambda page: page * 7 % 13))",
            ),
        ),
        sentence="The pool is handed out in no order of page numbers.",
        wrong="no_row_rewrite",
    ),
    Variant(
        name="last_freed_first_taken",
        edits=(Edit(CACHE_MANAGER, "take = free.popleft", "take = free.pop"),),
        sentence="The page that was freed last is handed out first.",
        wrong="row_is_rewritten_on_the_host_only",
    ),
    Variant(
        name="a_page_is_kept_free",
        edits=(
            Edit(
                CACHE_MANAGER,
                "self.prefix_cache.evict(missing * self.page_size)",
                "self.prefix_cache.evict(\n"
                "                min((missing + 1) * self.page_size, self.prefix_cache.evictable_size)\n"
                "            )",
            ),
        ),
        sentence="An allocation that has to evict makes room for one page more.",
        wrong="running_requests_reserve_nothing",
    ),
    Variant(
        name="first_freed_row_first",
        edits=(Edit(TABLE, "return self.free_rows.pop()", "return self.free_rows.pop(0)"),),
        sentence="Rows are handed out first in, first out.",
        wrong="row_is_not_given_back",
    ),
    Variant(
        name="rows_are_written_at_once",
        edits=(
            Edit(
                ENGINE_MODULE,
                """\
        self.streams.enqueue(
            SCHEDULER, partial(self.table.write_row_pages, row, first_page_idx, tuple(pages))
        )
""",
                "        self.table.write_row_pages(row, first_page_idx, pages)\n",
            ),
        ),
        sentence="The host writes the page table at once: nobody in flight reads what it changes otherwise.",
        wrong="release_in_flight",
    ),
    Variant(
        name="frees_come_a_step_late",
        edits=(
            Edit(
                SCHEDULER,
                "        self.cache.give_back([*duplicates, *tail])\n",
                "        self._retire_or_give_back(req, [*duplicates, *tail])\n",
            ),
            Edit(
                SCHEDULER,
                """\
        if pages and req.in_flight:
            self.retired.append((req.in_flight[-1], pages))
        elif pages:
            self.cache.give_back(pages)
""",
                """\
        if pages:
            self.retired.append((self._num_launched + 1, pages))
""",
            ),
            Edit(
                SCHEDULER,
                "        num_late = 1 if",
                "        else:\n"
                "            self._give_back_retired(self._num_launched + 1)\n"
                "        num_late = 1 if",
            ),
            Edit(
                SCHEDULER,
                "return not (self.requests or self.in_flight or self._replies)",
                "return not (self.requests or self.in_flight or self._replies or self.retired)",
            ),
        ),
        sentence="Whatever is given back waits for the batch after next.",
        wrong="retired_pages_are_given_back_twice",
    ),
    Variant(
        name="duplicates_stay_private",
        edits=(
            Edit(
                SCHEDULER,
                "        elif phase == PREFILL:\n            self._cache_unfinished(req)\n",
                """\
        elif phase == PREFILL:
            found = self.cache.prefix_cache.match_prefix(self._written_key(req))
            if req.handle is not None and found.prefix_len == req.handle.prefix_len:
                self._cache_unfinished(req)
""",
            ),
        ),
        sentence="A request whose prompt somebody else has cached keeps its own pages until it ends.",
        wrong="duplicates_are_never_given_back",
    ),
    Variant(
        name="cached_when_released",
        edits=(
            Edit(SCHEDULER, "        elif phase == PREFILL:\n            self._cache_unfinished(req)\n", ""),
        ),
        sentence="A prompt is cached when its request ends, not before.",
        wrong="inserted_pages_are_given_back",
    ),
    Variant(
        name="every_chunk_is_cached",
        edits=(
            Edit(
                SCHEDULER,
                "                    self._replies.append(self._take_token(req, token, batch.phase))\n",
                "                    self._replies.append(self._take_token(req, token, batch.phase))\n"
                "                else:\n                    self._cache_unfinished(req)\n",
            ),
        ),
        sentence="Each chunk of a prompt is cached when it is computed.",
        wrong="new_handle_is_not_locked",
    ),
    Variant(
        name="aborted_requests_are_not_cached",
        edits=(
            Edit(
                SCHEDULER,
                "        self._num_launched = 0\n",
                "        self._num_launched = 0\n        self._aborted: set[Req] = set()\n",
            ),
            Edit(
                SCHEDULER,
                "        self._replies.append(Reply(uid, None, ABORT, req.admitted_len))\n",
                "        self._replies.append(Reply(uid, None, ABORT, req.admitted_len))\n"
                "        self._aborted.add(req)\n",
            ),
            Edit(
                SCHEDULER,
                "        result = self.cache.insert(self._written_key(req), req.pages)\n"
                "        self.cache.unlock(old)\n"
                "        page_size",
                """\
        key = self._written_key(req)
        if req in self._aborted:
            key = key[: old.prefix_len * TOKEN_BYTES]
        result = self.cache.insert(key, req.pages)
        self.cache.unlock(old)
        page_size""",
            ),
        ),
        sentence="What an aborted request has computed is thrown away.",
        wrong="chunk_in_flight_is_released",
    ),
)

SCHEDULES = (
    Variant(
        name="half_the_budget",
        edits=(
            Edit(
                PREFILL, "self._token_budget = token_budget", "self._token_budget = max(1, token_budget // 2)"
            ),
        ),
        sentence="Chunks are half as long as the budget allows.",
        wrong="chunk_starts_at_the_handle_again",
    ),
    Variant(
        name="one_prompt_per_batch",
        edits=(
            Edit(
                PREFILL,
                "            chosen.append(req)\n",
                "            chosen.append(req)\n            break\n",
            ),
        ),
        sentence="A prefill batch holds one request.",
        wrong="chunked_request_is_forgotten",
    ),
    Variant(
        name="decode_before_prefill",
        edits=(
            Edit(
                SCHEDULER,
                "        chosen, admitted = self.prefill.schedule(reserved)\n",
                """\
        running = self.decode.schedule()
        chosen, admitted = ([], []) if running else self.prefill.schedule(reserved)
""",
            ),
        ),
        sentence="Nobody is admitted while somebody generates.",
        wrong="reply_after_the_end",
    ),
    Variant(
        name="newest_prompt_first",
        edits=(
            Edit(
                PREFILL,
                "        self.waiting.append(req)\n",
                "        held = sum(other.handle is not None for other in self.waiting)\n"
                "        self.waiting.insert(held, req)\n",
            ),
        ),
        sentence="The newest request is admitted first, behind those that hold a row.",
        wrong="abort_is_not_answered",
    ),
    Variant(
        name="overlap_waits_at_once",
        edits=(Edit(SCHEDULER, "num_late = 1 if self.overlap and batch is not None else 0", "num_late = 0"),),
        sentence="The overlap loop processes each batch in the step that launched it.",
        wrong="batch_does_not_wait_for_its_row",
    ),
)

VARIANTS: dict[str, Variant] = {variant.name: variant for variant in (*TREES, *MANAGERS, *SCHEDULES)}
"""Every variant by its name: trees, managers, orders."""
