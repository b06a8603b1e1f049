"""Faults of prefill: who is admitted, what is counted, which part of a prompt comes next.

Nothing here is right. Chapter: spec/05-prefill-and-chunking.md
"""

from __future__ import annotations

from minisgl_ref.zoo.fault import Edit, Fault
from minisgl_spec.invariants import CONTENT, OWNERSHIP, STRUCTURE

PREFILL = "minisgl_ref.scheduler.prefill"
CORE = "minisgl_ref.core"

NEED = "need = reserved_pages + req.pages_in_all(page_size) - handle.prefix_len // page_size"

ADMISSION = (
    Fault(
        name="no_second_look_after_the_lock",
        edits=(
            Edit(
                PREFILL,
                "        self._cache.lock(handle)\n        if need > self._cache.available_pages:\n",
                "        self._cache.lock(handle)\n        if need < 0:\n",
            ),
        ),
        rule="admitted_requests_fit",
        undoes="family 6: estimate and allocation differ; section 2, no re-check after lock",
        sentence="The matched prefix counts as available before it is locked, and nobody counts again after.",
        judges=(OWNERSHIP,),
        why="Too much is promised; what is there is well formed, and slots hold their tokens.",
    ),
    Fault(
        name="refused_after_the_lock_stays_locked",
        edits=(
            Edit(
                PREFILL,
                "            self._cache.unlock(handle)\n            return False\n",
                "            return False\n",
            ),
        ),
        rule="nothing_left_at_idle",
        undoes="L20",
        sentence="A request that is refused after its prefix was locked leaves the lock behind.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="row_is_taken_before_the_refusal",
        edits=(
            Edit(
                PREFILL,
                "        handle = self._cache.match_request(",
                "        req.row = self._table.allocate()\n        handle = self._cache.match_request(",
            ),
            Edit(
                PREFILL,
                "        req.handle = handle\n        req.row = self._table.allocate()\n",
                "        req.handle = handle\n",
            ),
        ),
        rule="rows_partitioned",
        undoes="SG-32",
        sentence="A row is taken before it is certain that the request is admitted, and not given back.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="match_is_kept_over_a_refusal",
        edits=(
            Edit(
                PREFILL,
                "        self.waiting: list[Req] = []\n",
                "        self.waiting: list[Req] = []\n        self._matched: dict[Req, object] = {}\n",
            ),
            Edit(
                PREFILL,
                "handle = self._cache.match_request(bytes(req.key))",
                "handle = self._matched.setdefault(req, self._cache.match_request(bytes(req.key)))",
            ),
        ),
        rule="steps_complete",
        undoes="NV-1",
        sentence="A request that was refused is admitted later with its old handle, whose node may be gone.",
        why="It raises before a state is wrong.",
    ),
    Fault(
        name="admitted_requests_are_not_added_up",
        edits=(
            Edit(PREFILL, "                reserved_pages += req.pages_needed(self._cache.page_size)\n", ""),
        ),
        rule="admitted_requests_fit",
        undoes="family 6: estimate and allocation differ; section 2, reserved_size not advanced",
        sentence="Each request of a pass is admitted as if it were the only one.",
        judges=(OWNERSHIP,),
        why="Too much is promised; what is there is well formed, and slots hold their tokens.",
    ),
    Fault(
        name="prefix_is_subtracted_twice",
        edits=(
            Edit(
                PREFILL,
                "handle.prefix_len // page_size\n        if need",
                "2 * (handle.prefix_len // page_size)\n        if need",
            ),
        ),
        rule="admitted_requests_fit",
        undoes="TR-4 and VL-20",
        sentence="What is cached of a prompt lowers its need twice.",
        judges=(OWNERSHIP,),
        why="Too much is promised; what is there is well formed, and slots hold their tokens.",
    ),
    Fault(
        name="prefix_is_not_subtracted",
        edits=(Edit(PREFILL, NEED, "need = reserved_pages + req.pages_in_all(page_size)"),),
        rule="requests_finish",
        undoes="LD-5",
        sentence="A request must find room for pages that it has already, and starves beside its prefix.",
        why="Every state is a right one; only nothing happens any more.",
    ),
    Fault(
        name="pool_may_not_be_filled",
        edits=(
            Edit(
                PREFILL,
                "        if need > self._cache.available_pages:\n            return",
                "        if need >= self._cache.available_pages:\n            return",
            ),
        ),
        rule="requests_finish",
        undoes="SG-27",
        sentence="A request that needs the whole pool is accepted by submit and never admitted.",
        why="Every state is a right one; only nothing happens any more.",
    ),
    Fault(
        name="last_token_counts_as_stored",
        edits=(
            Edit(
                CORE,
                "return div_ceil(self.max_device_len - 1, page_size)",
                "return div_ceil(self.max_device_len, page_size)",
            ),
        ),
        rule="requests_finish",
        undoes="SG-27",
        sentence="Admission counts a page for a token that is never stored; submit does not.",
        why="Every state is a right one; only nothing happens any more.",
    ),
    Fault(
        name="newest_request_first",
        edits=(Edit(PREFILL, "        self.waiting.append(req)\n", "        self.waiting.insert(0, req)\n"),),
        rule="requests_finish",
        undoes="SG-35",
        sentence="The newest request stands before a chunked one that holds the row it waits for.",
        why="Every state is a right one; only nothing happens any more.",
    ),
)

CHUNKS = (
    Fault(
        name="budget_is_not_spent",
        edits=(
            Edit(
                PREFILL,
                "            budget -= self._take_chunk(req, budget)\n",
                "            self._take_chunk(req, budget)\n",
            ),
        ),
        rule="agrees_with_oracle",
        undoes="MS-10",
        sentence="The budget of a step is not lowered by what its requests take of it.",
        is_exact=True,
        why="It is a matter of policy: every state it leads to is a right one.",
    ),
    Fault(
        name="budget_may_be_empty",
        edits=(Edit(PREFILL, "            if budget <= 0:\n                break\n", ""),),
        rule="lengths_ordered",
        undoes="SG-28",
        sentence="A request joins a batch with nothing left of the budget, and computes nothing.",
        judges=(STRUCTURE,),
        why="A length is wrong; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="chunked_request_is_forgotten",
        edits=(
            Edit(
                PREFILL,
                "self.waiting = chunked + self.waiting[len(chosen) :]",
                "self.waiting = self.waiting[len(chosen) :]",
            ),
        ),
        rule="requests_finish",
        undoes="SG-31",
        sentence="A prompt that was computed in part leaves the line, and nobody goes on with it.",
        why="Every state is a right one; only nothing happens any more.",
    ),
    Fault(
        name="chunk_goes_to_the_end_of_the_line",
        edits=(
            Edit(
                PREFILL,
                "self.waiting = chunked + self.waiting[len(chosen) :]",
                "self.waiting = self.waiting[len(chosen) :] + chunked",
            ),
        ),
        rule="agrees_with_oracle",
        undoes="section 2, chunk requeued at the tail",
        sentence="A prompt that was computed in part waits behind everybody, holding its pages.",
        is_exact=True,
        why="It is a matter of policy: every state it leads to is a right one.",
    ),
    Fault(
        name="chunk_starts_at_the_handle_again",
        edits=(
            Edit(
                PREFILL,
                "            budget -= self._take_chunk(req, budget)\n",
                "            req.cached_len = req.admitted_len\n"
                "            budget -= self._take_chunk(req, budget)\n",
            ),
        ),
        rule="requests_finish",
        undoes="LD-1",
        sentence="Every chunk of a prompt starts where the cached prefix ended.",
        why="Every state is a right one; only nothing happens any more.",
    ),
    Fault(
        name="chunk_takes_another_row",
        edits=(
            Edit(
                PREFILL,
                "                admitted.append(req)\n",
                "                admitted.append(req)\n"
                "            elif self._table.free_rows:\n"
                "                req.row = self._table.allocate()\n"
                "                self._engine.write_pages(req.row, 0, req.pages)\n",
            ),
        ),
        rule="rows_partitioned",
        undoes="SG-8",
        sentence="A prompt that goes on is initialised again, without a release of the row it held.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="chunk_is_written_where_the_first_was",
        edits=(
            Edit(
                PREFILL,
                "self._engine.write_tokens(req.row, req.cached_len, bytes(chunk))",
                "self._engine.write_tokens(req.row, req.admitted_len, bytes(chunk))",
            ),
        ),
        rule="reads_hold_their_prefix",
        undoes="VL-22",
        sentence="The tokens of a later chunk are put where the first chunk's were.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="prefill_starts_at_zero",
        edits=(
            Edit(
                PREFILL,
                "        req.admitted_len = req.cached_len = req.written_len = handle.prefix_len\n",
                "        req.admitted_len = req.written_len = handle.prefix_len\n"
                "        req.cached_len = 0\n",
            ),
            Edit(
                "minisgl_ref.scheduler.scheduler",
                "counts = [div_ceil(req.device_len, page_size) - len(req.pages) for req in reqs]",
                "counts = [max(0, div_ceil(req.device_len, page_size) - len(req.pages)) for req in reqs]",
            ),
        ),
        rule="writes_are_private",
        undoes="FX-1",
        sentence="A request that was given a cached prefix computes it again, into the tree's pages.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="cached_pages_are_not_mapped",
        edits=(
            Edit(
                PREFILL,
                "        if req.pages:\n            self._engine.write_pages(req.row, 0, req.pages)\n",
                "",
            ),
        ),
        rule="reads_hold_their_prefix",
        undoes="section 2, cached pages not copied into row",
        sentence="The host knows the pages of a cached prefix; the row on the device is not told.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
)

FAULTS = (*ADMISSION, *CHUNKS)
