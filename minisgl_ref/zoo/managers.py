"""Faults of the managers: free pages and allocation, rows and what is written to them, who decodes.

A manager's own checks would stop most of these at once; they are hunted with the checks off.

Nothing here is right. Chapter: spec/01-pages-and-slots.md, spec/06-decode-and-release.md
"""

from __future__ import annotations

from minisgl_ref.zoo.fault import Edit, Fault
from minisgl_spec.invariants import CONTENT, OWNERSHIP, STRUCTURE

CACHE_MANAGER = "minisgl_ref.scheduler.cache"
TABLE = "minisgl_ref.scheduler.table"
DECODE = "minisgl_ref.scheduler.decode"

PAGES = (
    Fault(
        name="whole_prompt_is_matched",
        edits=(Edit(CACHE_MANAGER, "match_prefix(key[:-TOKEN_BYTES])", "match_prefix(key)"),),
        rule="lengths_ordered",
        undoes="VL-1, NV-3 and HF-2; section 2, match whole prompt",
        sentence="A prompt that is cached whole is matched whole: no token is left to compute.",
        judges=(STRUCTURE, CONTENT),
    ),
    Fault(
        name="one_token_prompt_is_refused",
        edits=(Edit(CACHE_MANAGER, "if len(key) < TOKEN_BYTES:", "if len(key) <= TOKEN_BYTES:"),),
        rule="steps_complete",
        undoes="LL-1",
        sentence="A prompt of one token has an empty key without its last token, and that is an error.",
        judges=(OWNERSHIP,),
        why="It raises with a row taken; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="key_of_two_bits_per_token",
        edits=(
            Edit(
                CACHE_MANAGER,
                "self.prefix_cache.match_prefix(key[:-TOKEN_BYTES])",
                "self.prefix_cache.match_prefix(bytes(byte & 3 for byte in key[:-TOKEN_BYTES]))",
            ),
            Edit(
                CACHE_MANAGER,
                "self.prefix_cache.insert_prefix(key, pages)",
                "self.prefix_cache.insert_prefix(bytes(byte & 3 for byte in key), pages)",
            ),
        ),
        rule="slots_hold_their_tokens",
        undoes="VL-10",
        sentence="A key keeps the low bits of each token: different prompts share their KV.",
        judges=(CONTENT,),
        why="The tree is well formed for the keys it was given; they are not the tokens.",
    ),
    Fault(
        name="eviction_is_asked_for_in_pages",
        edits=(
            Edit(
                CACHE_MANAGER,
                "self.prefix_cache.evict(missing * self.page_size)",
                "self.prefix_cache.evict(missing)",
            ),
        ),
        rule="pages_partitioned",
        undoes="MS-5",
        sentence="Eviction is asked for a number of pages where it expects slots, and frees too little.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="surplus_of_an_eviction_is_lost",
        edits=(
            Edit(CACHE_MANAGER, "free.extend(self.last_evicted)", "free.extend(self.last_evicted[:missing])"),
        ),
        rule="pages_partitioned",
        undoes="LM-1",
        sentence="Of the pages an eviction returned only those that were missing become free.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="surplus_of_an_eviction_is_freed_twice",
        edits=(
            Edit(
                CACHE_MANAGER,
                "            free.extend(self.last_evicted)\n",
                "            free.extend(self.last_evicted)\n"
                "            free.extend(self.last_evicted[missing:])\n",
            ),
        ),
        rule="pages_partitioned",
        undoes="FT-1",
        sentence="Pages that an eviction returned beyond what was missing enter the free list twice.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="page_of_an_eviction_stays_free",
        edits=(
            Edit(
                CACHE_MANAGER,
                "        pages = [take() for _ in range(num_pages)]\n",
                "        pages = [take() for _ in range(num_pages)]\n"
                "        free.extend(pages[:0] if missing <= 0 else pages[-1:])\n",
            ),
        ),
        rule="pages_partitioned",
        undoes="family 1: two owners",
        sentence="The page an eviction was needed for is handed out and stays in the free list.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="available_counts_protected_pages",
        edits=(
            Edit(
                CACHE_MANAGER,
                "return len(self.free_pages) + self.prefix_cache.evictable_size // self.page_size",
                "return len(self.free_pages) + (\n"
                "            self.prefix_cache.evictable_size + self.prefix_cache.protected_size\n"
                "        ) // self.page_size",
            ),
        ),
        rule="admitted_requests_fit",
        undoes="family 6: estimate and allocation differ",
        sentence="What running requests have locked counts as available.",
        judges=(OWNERSHIP,),
        why="Too much is promised; what is there is well formed, and slots hold their tokens.",
    ),
    Fault(
        name="available_counts_slots_as_pages",
        edits=(
            Edit(
                CACHE_MANAGER,
                "return len(self.free_pages) + self.prefix_cache.evictable_size // self.page_size",
                "return len(self.free_pages) + self.prefix_cache.evictable_size",
            ),
        ),
        rule="admitted_requests_fit",
        undoes="family 5: pages against tokens",
        sentence="evictable_size, in slots, is added to a number of pages.",
        judges=(OWNERSHIP,),
        why="Too much is promised; what is there is well formed, and slots hold their tokens.",
    ),
    Fault(
        name="available_leaves_out_the_cache",
        edits=(
            Edit(
                CACHE_MANAGER,
                "return len(self.free_pages) + self.prefix_cache.evictable_size // self.page_size",
                "return len(self.free_pages)",
            ),
        ),
        rule="requests_finish",
        undoes="VL-26",
        sentence="What could be evicted does not count as available: a full cache admits nobody, for ever.",
        why="Every state is a right one; only nothing happens any more.",
    ),
    Fault(
        name="frees_of_a_batch_count_twice",
        edits=(
            Edit(
                CACHE_MANAGER,
                "            self._batched.extend(pages)\n",
                "            self._batched.extend(pages)\n            self.free_pages.extend(pages)\n",
            ),
        ),
        rule="pages_partitioned",
        undoes="ML-2",
        sentence="Pages given back while a batch is processed become free at once, and again at its end.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="last_free_of_a_batch_is_lost",
        edits=(
            Edit(CACHE_MANAGER, "self.free_pages.extend(batched)", "self.free_pages.extend(batched[:4])"),
        ),
        rule="pages_partitioned",
        undoes="family 1: one release that is complete",
        sentence="Of the pages given back while a batch is processed only four become free.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="reset_loses_its_pages",
        edits=(
            Edit(
                CACHE_MANAGER,
                "deque(sorted([*self.free_pages, *forgotten]))",
                "deque(sorted(self.free_pages))",
            ),
        ),
        rule="pages_partitioned",
        undoes="SG-20",
        sentence="A reset forgets the cached prefixes and gives nobody their pages.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
)

ROWS = (
    Fault(
        name="row_is_not_given_back",
        edits=(Edit(TABLE, "        self.free_rows.append(row)\n", ""),),
        rule="rows_partitioned",
        undoes="SG-38",
        sentence="A released request's pages become free, its row does not.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="row_stays_free_when_taken",
        edits=(Edit(TABLE, "return self.free_rows.pop()", "return self.free_rows[-1]"),),
        rule="rows_partitioned",
        undoes="family 1: two owners",
        sentence="A row that is handed out stays in the list of free rows.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="row_is_mapped_a_page_early",
        edits=(
            Edit(
                TABLE,
                "        lines = self._row_pages[row, start //",
                "        if start:\n"
                "            start, end = start - self._page_size, end - self._page_size\n"
                "        lines = self._row_pages[row, start //",
            ),
        ),
        rule="reads_hold_their_prefix",
        undoes="family 5: pages against tokens",
        sentence="Pages taken later are written over the row's last page instead of behind it.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="slots_are_eight_bits_wide",
        edits=(
            Edit(
                TABLE,
                "        self._slots_of_page = slots.view(num_pages + 1, page_size)\n",
                "        self._slots_of_page = (slots % 128).view(num_pages + 1, page_size)\n",
            ),
        ),
        rule="slots_hold_their_tokens",
        undoes="VL-24",
        sentence="The slots of a page are computed in a type that is too narrow for a large pool.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="last_token_of_a_chunk_is_not_written",
        edits=(
            Edit(
                TABLE,
                "self._token_pool[row, start:end] = np.frombuffer(key, dtype=np.int32)\n",
                "self._token_pool[row, start : end - 1] = np.frombuffer(key, dtype=np.int32)[:-1]\n",
            ),
        ),
        rule="reads_hold_their_prefix",
        undoes="family 5: one too few",
        sentence="The last token of what is written to a row is left out.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
)

DECODING = (
    Fault(
        name="decode_in_the_order_of_ids",
        edits=(
            Edit(
                DECODE,
                "for req in self.running.values() if req.can_decode]",
                "for req in sorted(self.running.values(), key=lambda req: req.uid * 5 % 7) if "
                "req.can_decode]",
            ),
        ),
        rule="agrees_with_oracle",
        undoes="deviation 12, MS-14 and L12",
        sentence="A decode batch is ordered by a number that has nothing to do with admission, as a set is.",
        is_exact=True,
        why="It is a matter of policy: every state it leads to is a right one.",
    ),
    Fault(
        name="last_token_is_never_launched",
        edits=(Edit(DECODE, "if req.can_decode]", "if req.remain_len > 1]"),),
        rule="requests_finish",
        undoes="VL-12",
        sentence="A request with one token left to generate is skipped, in every step.",
        why="Every state is a right one; only nothing happens any more.",
    ),
    Fault(
        name="decode_beyond_the_last_token",
        edits=(Edit(DECODE, " if req.can_decode]", "]"),),
        rule="mapped_pages_cover_lengths",
        undoes="SG-14",
        sentence="The overlap loop launches a step, and takes a page, for a token that no request may have.",
        judges=(STRUCTURE,),
        why="A length is wrong; pages keep one owner and slots their tokens.",
    ),
)

FAULTS = (*PAGES, *ROWS, *DECODING)
