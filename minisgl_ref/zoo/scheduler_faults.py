"""Faults of the scheduler: what is accepted, when a request ends, what is cached, released and told.

Nothing here is right. Chapter: spec/04-requests.md, spec/06-decode-and-release.md, spec/07-overlap.md
"""

from __future__ import annotations

from minisgl_ref.zoo.fault import Edit, Fault
from minisgl_spec.invariants import CONTENT, OWNERSHIP, STRUCTURE

SCHEDULER = "minisgl_ref.scheduler.scheduler"
CORE = "minisgl_ref.core"

SUBMISSION = (
    Fault(
        name="limit_is_rounded_up",
        edits=(
            Edit(
                SCHEDULER,
                "        if len(ids) >= self.max_seq_len:\n",
                "        if len(ids) >= -(-self.max_seq_len // 32) * 32:\n",
            ),
        ),
        rule="mistakes_are_refused",
        undoes="MS-6",
        sentence="The longest sequence is rounded up to a multiple of 32 and used as the limit of a prompt.",
        judges=(STRUCTURE,),
        why="What was accepted breaks counts or lengths; pages keep one owner and slots their tokens.",
    ),
    Fault(
        name="outputs_need_no_pages",
        edits=(
            Edit(
                SCHEDULER,
                "length = len(ids) + self._clamped(len(ids), params.max_tokens) - 1",
                "length = len(ids)",
            ),
        ),
        rule="mistakes_are_refused",
        undoes="SG-40",
        sentence="Only the prompt is held against the pool, not what will be generated behind it.",
        why="It shows in an answer: accepting the call leaves every state well formed.",
    ),
    Fault(
        name="max_tokens_is_not_clamped",
        edits=(
            Edit(
                SCHEDULER,
                "            max_tokens=self._clamped(len(ids), params.max_tokens),\n",
                "            max_tokens=params.max_tokens,\n",
            ),
        ),
        rule="ends_with_its_last_token",
        undoes="VL-19",
        sentence="max_tokens is not cut to what is left of the longest sequence.",
        why="It shows in the replies: every state behind them is a right one.",
    ),
    Fault(
        name="not_a_number_is_a_temperature",
        edits=(
            Edit(
                CORE,
                "if not math.isfinite(_real(params.temperature)):",
                "if _real(params.temperature) < 0:",
            ),
        ),
        rule="mistakes_are_refused",
        undoes="family: bad input",
        sentence="A temperature that is no number is accepted, because it is not below 0.",
        why="It shows in an answer: accepting the call leaves every state well formed.",
    ),
    Fault(
        name="token_outside_the_vocabulary",
        edits=(Edit(SCHEDULER, "if not 0 <= token < vocab_size)", "if token > vocab_size)"),),
        rule="mistakes_are_refused",
        undoes="family: bad input",
        sentence="The token vocab_size, and negative ones, are accepted.",
        why="It shows in an answer: accepting the call leaves every state well formed.",
    ),
    Fault(
        name="stop_tokens_go_with_eos",
        edits=(
            Edit(
                SCHEDULER,
                """\
            stop_ids=frozenset(params.stop_token_ids)
            | frozenset(() if params.ignore_eos else self.engine.model.config.eos_ids),
""",
                """\
            stop_ids=frozenset(
                () if params.ignore_eos else (*params.stop_token_ids, *self.engine.model.config.eos_ids)
            ),
""",
            ),
        ),
        rule="ends_with_its_last_token",
        undoes="family: finishing",
        sentence="Whoever ignores EOS loses the stop tokens as well.",
        why="It shows in the replies: every state behind them is a right one.",
    ),
)

ABORTS = (
    Fault(
        name="abort_ends_anybody",
        edits=(
            Edit(
                SCHEDULER,
                "        req = self.requests.get(uid)\n",
                "        req = self.requests.get(uid) or next(iter(self.requests.values()), None)\n"
                "        uid = uid if req is None else req.uid\n",
            ),
        ),
        rule="mistakes_are_refused",
        undoes="SG-39",
        sentence="An abort of an unknown uid ends the oldest request.",
        why="It shows in an answer: accepting the call leaves every state well formed.",
    ),
    Fault(
        name="abort_of_an_ended_request",
        edits=(Edit(SCHEDULER, "if req is None or req.phase == RETIRED:", "if req is None:"),),
        rule="mistakes_are_refused",
        undoes="family 1: two owners",
        sentence="A request that has ended and is still in flight can be aborted: a second terminal reply.",
        why="It shows in an answer: accepting the call leaves every state well formed.",
    ),
    Fault(
        name="abort_is_not_answered",
        edits=(
            Edit(SCHEDULER, "        self._replies.append(Reply(uid, None, ABORT, req.admitted_len))\n", ""),
        ),
        rule="requests_finish",
        undoes="SG-39",
        sentence="An abort releases everything and tells nobody.",
        why="Every state is a right one; only nothing happens any more.",
    ),
    Fault(
        name="aborted_chunk_keeps_its_pages",
        edits=(
            Edit(
                SCHEDULER,
                "        if req.handle is None:\n            del self.requests[uid]\n",
                "        if req.handle is None or (req.phase == PREFILL and not req.in_flight):\n"
                "            del self.requests[uid]\n",
            ),
        ),
        rule="nothing_left_at_idle",
        undoes="SG-10",
        sentence="An abort between two chunks of a prompt forgets the request and releases nothing.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="chunk_in_flight_is_released",
        edits=(
            Edit(
                SCHEDULER,
                "        if req.in_flight:\n            req.phase = RETIRED\n",
                "        if req.in_flight and req.phase != PREFILL:\n            req.phase = RETIRED\n",
            ),
        ),
        rule="in_flight_requests_are_held",
        undoes="SG-11 and SG-37",
        sentence="An abort releases a request whose chunk is in flight.",
        judges=(OWNERSHIP,),
        why="What a batch in flight holds is given back; nobody is given it before it is processed.",
    ),
    Fault(
        name="aborted_chunk_in_flight_is_never_released",
        edits=(
            Edit(
                SCHEDULER,
                "                if req.phase == RETIRED:\n                    self._end(req)\n"
                "                elif entry.sampled:\n",
                "                if req.phase == RETIRED and entry.sampled:\n"
                "                    self._end(req)\n                elif entry.sampled:\n",
            ),
        ),
        rule="requests_finish",
        undoes="VL-16",
        sentence="A request aborted with a chunk in flight waits for a result that brings no token.",
        why="Every state is a right one; only nothing happens any more.",
    ),
)

CACHING = (
    Fault(
        name="row_is_rewritten_on_the_host_only",
        edits=(
            Edit(
                SCHEDULER, "            self.engine.write_pages(req.row, first, req.pages[first:end])\n", ""
            ),
        ),
        rule="reads_hold_their_prefix",
        undoes="MS-23",
        sentence="Duplicates are replaced in the host's list; the device goes on reading the freed pages.",
        judges=(CONTENT,),
        why="Only the device is wrong: what the host shows is well formed, and owned once.",
    ),
    Fault(
        name="new_handle_is_not_locked",
        edits=(Edit(SCHEDULER, "        self.cache.lock(result.handle)\n", ""),),
        rule="handle_is_locked",
        undoes="family 4: lock and unlock differ",
        sentence="After its prompt is cached a request holds a handle that it has not locked.",
        judges=(STRUCTURE, OWNERSHIP, CONTENT),
    ),
    Fault(
        name="old_handle_stays_locked",
        edits=(
            Edit(
                SCHEDULER,
                "        self.cache.unlock(old)\n        req.handle = result.handle\n",
                "        req.handle = result.handle\n",
            ),
        ),
        rule="nothing_left_at_idle",
        undoes="LM-3",
        sentence="A request takes a new lock when its prompt is cached and keeps the old one for ever.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="prompt_is_cached_at_launch",
        edits=(
            Edit(
                SCHEDULER,
                "                req.phase = DECODE\n                self.decode.add(req)\n",
                "                req.phase = DECODE\n                self.decode.add(req)\n"
                "                req.written_len = entry.device_len\n"
                "                self._cache_unfinished(req)\n",
            ),
        ),
        rule="writes_are_private",
        undoes="NV-4 and VL-7",
        sentence="A prompt can be matched as soon as its batch is launched, before anything is computed.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="what_is_in_flight_is_cached",
        edits=(
            Edit(
                SCHEDULER,
                "return bytes(req.key[: req.written_len * TOKEN_BYTES])",
                "return bytes(req.key[: req.cached_len * TOKEN_BYTES])",
            ),
        ),
        rule="writes_are_private",
        undoes="TG-2 and SG-15",
        sentence="Positions that a batch in flight has yet to write are cached with the others.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="new_pages_count_as_duplicates",
        edits=(
            Edit(
                SCHEDULER,
                "first, end = old.prefix_len // self.cache.page_size, result.prefix_len // "
                "self.cache.page_size",
                "first, end = old.prefix_len // self.cache.page_size, result.handle.prefix_len // "
                "self.cache.page_size",
            ),
        ),
        rule="pages_partitioned",
        undoes="family 2: free is not forgotten",
        sentence="The pages a prompt has just brought into the tree are given back like duplicates.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="chunk_is_sampled",
        edits=(
            Edit(SCHEDULER, "req.device_len >= req.prompt_len) for req in reqs", "True) for req in reqs"),
        ),
        rule="tokens_are_the_models",
        undoes="MS-7",
        sentence="A chunk that does not end its prompt yields a token.",
        judges=(OWNERSHIP, CONTENT),
    ),
)

RELEASE = (
    Fault(
        name="inserted_pages_are_given_back",
        edits=(
            Edit(
                SCHEDULER,
                "duplicates = req.pages[old.prefix_len // page_size : result.prefix_len // page_size]",
                "duplicates = req.pages[result.prefix_len // page_size : result.handle.prefix_len // "
                "page_size]",
            ),
        ),
        rule="pages_partitioned",
        undoes="MS-12",
        sentence="A release gives back the half that the tree has just taken, and keeps the duplicates.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="duplicates_are_never_given_back",
        edits=(
            Edit(
                SCHEDULER,
                "        self.cache.give_back([*duplicates, *tail])\n",
                "        self.cache.give_back(tail)\n",
            ),
        ),
        rule="pages_partitioned",
        undoes="section 2, duplicates never freed",
        sentence="A release gives back the tail and loses the duplicates.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="tail_is_never_given_back",
        edits=(
            Edit(
                SCHEDULER,
                "        self.cache.give_back([*duplicates, *tail])\n",
                "        self.cache.give_back(duplicates)\n",
            ),
        ),
        rule="pages_partitioned",
        undoes="section 2, tail page not freed",
        sentence="A release gives back the duplicates and loses the last, partial page.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="duplicates_start_at_zero",
        edits=(
            Edit(
                SCHEDULER,
                "duplicates = req.pages[old.prefix_len // page_size : result.prefix_len // page_size]",
                "duplicates = req.pages[: result.prefix_len // page_size]",
            ),
        ),
        rule="pages_partitioned",
        undoes="SG-6",
        sentence="A release gives back the pages of the prefix that the request was lent.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="pages_of_told_tokens_only",
        edits=(
            Edit(
                SCHEDULER,
                "tail = req.pages[result.handle.prefix_len // page_size :]",
                "tail = req.pages[result.handle.prefix_len // page_size : div_ceil(req.ids_len - 1, "
                "page_size)]",
            ),
        ),
        rule="pages_partitioned",
        undoes="MS-20",
        sentence="A release counts the tokens that were told, and loses the page of one computed beyond.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="row_is_lost_at_the_first_token",
        edits=(
            Edit(
                SCHEDULER,
                "        self.table.give_back(req.row)\n",
                "        if req.output_len != 1:\n            self.table.give_back(req.row)\n",
            ),
        ),
        rule="rows_partitioned",
        undoes="SG-9",
        sentence="A request that ends with its first token gives back its pages and not its row.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="retired_pages_are_given_back_twice",
        edits=(
            Edit(
                SCHEDULER,
                "self.retired = [(last, pages) for last, pages in self.retired if last > batch]",
                "self.retired = [(last, pages) for last, pages in self.retired if last >= batch]",
            ),
        ),
        rule="pages_partitioned",
        undoes="family 1: two owners",
        sentence="Pages that are given back when their last batch is processed stay on the list.",
        judges=(OWNERSHIP, CONTENT),
    ),
    Fault(
        name="retired_pages_are_forgotten",
        edits=(
            Edit(
                SCHEDULER,
                "        for last, pages in self.retired:\n            if last <= batch:\n",
                "        for last, pages in self.retired:\n            if last < batch:\n",
            ),
        ),
        rule="pages_partitioned",
        undoes="family 1: one release that is complete",
        sentence="Pages that wait for a batch in flight are taken off the list and given to nobody.",
        judges=(OWNERSHIP,),
        why="Pages or rows have the wrong owner; the tree is well formed and slots hold their tokens.",
    ),
    Fault(
        name="uid_is_never_free_again",
        edits=(
            Edit(
                SCHEDULER,
                "        del self.requests[req.uid], self.admitted[req.uid]\n",
                "        del self.admitted[req.uid]\n        req.phase = RETIRED\n",
            ),
        ),
        rule="requests_finish",
        undoes="L13",
        sentence="A released request stays in the map of requests: the engine never comes to rest.",
        why="Every state is a right one; only nothing happens any more.",
    ),
)

STEPS = (
    Fault(
        name="running_requests_reserve_nothing",
        edits=(Edit(SCHEDULER, "self.prefill.schedule(reserved)", "self.prefill.schedule(0)"),),
        rule="admitted_requests_fit",
        undoes="family 6: estimate and allocation differ; section 2, decode reservation ignored",
        sentence="New requests are admitted into pages that running ones will need.",
        judges=(OWNERSHIP,),
        why="Too much is promised; what is there is well formed, and slots hold their tokens.",
    ),
    Fault(
        name="chunked_requests_reserve_nothing",
        edits=(
            Edit(
                SCHEDULER,
                "sum(req.pages_needed(page_size) for req in self.admitted.values() if req.phase != RETIRED)",
                "sum(req.pages_needed(page_size) for req in self.admitted.values() if req.phase == DECODE)",
            ),
        ),
        rule="admitted_requests_fit",
        undoes="SG-28",
        sentence="New requests are admitted into pages that the rest of a chunked prompt will need.",
        judges=(OWNERSHIP,),
        why="Too much is promised; what is there is well formed, and slots hold their tokens.",
    ),
    Fault(
        name="page_of_the_last_position_is_missing",
        edits=(
            Edit(
                SCHEDULER,
                "counts = [div_ceil(req.device_len, page_size) - len(req.pages) for req in reqs]",
                "counts = [max(0, req.device_len // page_size - len(req.pages)) for req in reqs]",
            ),
        ),
        rule="mapped_pages_cover_lengths",
        undoes="SJ-3",
        sentence="Allocation rounds down where admission rounds up: the last position has no page.",
        judges=(STRUCTURE, CONTENT),
    ),
    Fault(
        name="first_token_does_not_stop",
        edits=(
            Edit(
                SCHEDULER,
                "reply = Reply(req.uid, token, req.finish_reason_after(token), req.admitted_len)",
                "reason = req.finish_reason_after(-1 if phase == PREFILL else token)\n"
                "        reply = Reply(req.uid, token, reason, req.admitted_len)",
            ),
        ),
        rule="ends_with_its_last_token",
        undoes="family: finishing",
        sentence="A stop token ends a request unless it is the first output.",
        why="It shows in the replies: every state behind them is a right one.",
    ),
    Fault(
        name="ends_a_token_late",
        edits=(
            Edit(
                CORE,
                "return LENGTH if self.output_len >= self.max_tokens else None",
                "return LENGTH if self.output_len > self.max_tokens else None",
            ),
        ),
        rule="ends_with_its_last_token",
        undoes="family: finishing",
        sentence="A request ends when it has more than max_tokens outputs.",
        why="It shows in the replies: every state behind them is a right one.",
    ),
    Fault(
        name="last_token_is_not_told",
        edits=(
            Edit(
                SCHEDULER,
                "reply = Reply(req.uid, token, req.finish_reason_after(token), req.admitted_len)",
                "reason = req.finish_reason_after(token)\n"
                "        reply = Reply(req.uid, None if reason else token, reason, req.admitted_len)",
            ),
        ),
        rule="replied_once",
        undoes="MS-10",
        sentence="The terminal reply brings no token: finished is taken for nothing new.",
        why="It shows in the replies: every state behind them is a right one.",
    ),
    Fault(
        name="cached_len_of_now",
        edits=(
            Edit(
                SCHEDULER,
                "reply = Reply(req.uid, token, req.finish_reason_after(token), req.admitted_len)",
                "reply = Reply(req.uid, token, req.finish_reason_after(token), req.cached_len)",
            ),
        ),
        rule="agrees_with_oracle",
        undoes="VL-25",
        sentence="A reply counts what a request computed itself as found in the cache.",
        is_exact=True,
        why="It is a matter of policy: every state it leads to is a right one.",
    ),
)

FAULTS = (*SUBMISSION, *ABORTS, *CACHING, *RELEASE, *STEPS)
