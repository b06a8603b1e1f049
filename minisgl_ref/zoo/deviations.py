"""The undo of each of deviations 1 to 8: a fault that goes back to what upstream does.

Each restores one behaviour and no other, so that its finding is its own; where upstream would go on
in silence, a second release does too (a root's handle may be unlocked twice, a request forgotten
twice). Run them with the engine's checks off: what finds them is the judges.

`rule` is the first that the conformance runner names, and the one that `spec/deviations.md` declares.
Chapter: spec/deviations.md
"""

from __future__ import annotations

from minisgl_ref.zoo.fault import Edit, Fault
from minisgl_spec.invariants import CONTENT, OWNERSHIP, STRUCTURE

SCHEDULER = "minisgl_ref.scheduler.scheduler"
PREFILL = "minisgl_ref.scheduler.prefill"
TABLE = "minisgl_ref.scheduler.table"
CORE = "minisgl_ref.core"

RELEASE_TWICE = (
    Edit(
        SCHEDULER,
        """\
        self.cache.unlock(old)
        page_size = self.cache.page_size
""",
        """\
        if old.is_locked or old.prefix_len:
            self.cache.unlock(old)
        page_size = self.cache.page_size
""",
    ),
    Edit(
        SCHEDULER,
        """\
        del self.requests[req.uid], self.admitted[req.uid]
""",
        """\
        self.requests.pop(req.uid, None)
        self.admitted.pop(req.uid, None)
""",
    ),
)
"""A second release of a request is taken as upstream takes it: in silence if its handle is the root."""


def _abort_at_once(has_output: str) -> Edit:
    """Let an abort release a request whose last prefill, or a decode, is in flight."""
    return Edit(
        SCHEDULER,
        """\
        else:
            self._end(req)
        self._check()
""",
        f"""\
        elif req.phase == DECODE and req.in_flight and {has_output}:
            self.decode.remove(req)
            req.written_len = req.cached_len
            self._release(req)
        else:
            self._end(req)
        self._check()
""",
    )


NO_ROW_REWRITE = Fault(
    name="no_row_rewrite",
    edits=(
        Edit(
            SCHEDULER,
            """\
            req.pages[first:end] = result.handle.pages()[first:end]
            self.engine.write_pages(req.row, first, req.pages[first:end])
""",
            """\
            self.cache.give_back(duplicates)
""",
        ),
        Edit(
            SCHEDULER,
            """\
        self._retire_or_give_back(req, duplicates)
""",
            "",
        ),
    ),
    rule="page_table_follows_handle",
    undoes="deviation 1, MS-11 and L1",
    sentence="An unfinished request's duplicate pages are freed while its row goes on naming them.",
    judges=(OWNERSHIP, CONTENT),
)

ABORT_IN_FINAL_PREFILL = Fault(
    name="abort_in_final_prefill",
    edits=(
        _abort_at_once("not req.output_len"),
        *RELEASE_TWICE,
        Edit(
            SCHEDULER,
            """\
        self.cache.unlock(old)
        req.handle = result.handle
""",
            """\
        if old.is_locked or old.prefix_len:
            self.cache.unlock(old)
        req.handle = result.handle
""",
        ),
    ),
    rule="in_flight_requests_are_held",
    undoes="deviation 2, L2",
    sentence="An abort releases a request whose final prefill is in flight; its result caches it again.",
    judges=(OWNERSHIP, CONTENT),
)

ABORT_AS_DECODE_FINISHES = Fault(
    name="abort_as_decode_finishes",
    edits=(_abort_at_once("req.output_len"), *RELEASE_TWICE),
    rule="in_flight_requests_are_held",
    undoes="deviation 3, MS-13 and L3",
    sentence="An abort releases a request whose decode is in flight; its last result releases it again.",
    judges=(OWNERSHIP, CONTENT),
)

REPLY_AFTER_THE_END = Fault(
    name="reply_after_the_end",
    edits=(
        Edit(
            SCHEDULER,
            """\
                if req.phase == RETIRED:
                    self._end(req)
""",
            """\
                if req.phase == RETIRED:
                    if entry.sampled:
                        self._replies.append(Reply(req.uid, token, None, req.admitted_len))
                        self._record_reply(self._replies[-1])
                    self._end(req)
""",
        ),
    ),
    rule="replied_once",
    undoes="deviation 4, MS-22 and L4",
    sentence="The token of a step that was in flight when its request ended is delivered after the end.",
    why="It shows in the replies: every state behind them is a right one.",
)

RELEASE_IN_FLIGHT = Fault(
    name="release_in_flight",
    edits=(
        Edit(
            SCHEDULER,
            """\
        if req.in_flight:
            req.phase = RETIRED
        else:
            self._release(req)
""",
            """\
        req.phase = RETIRED
        self._release(req)
""",
        ),
        Edit(
            SCHEDULER,
            """\
                if req.phase == RETIRED:
                    self._end(req)
                elif entry.sampled:
""",
            """\
                if req.phase != RETIRED and entry.sampled:
""",
        ),
    ),
    rule="in_flight_requests_are_held",
    undoes="deviation 5, MS-22 and L5",
    sentence="Row and pages of a request that has ended are given back though a batch in flight holds it.",
    judges=(OWNERSHIP,),
    why="What a batch in flight holds is given back; another is rarely given it before the batch is done.",
)

ADMISSION_COUNTS_TOKENS = Fault(
    name="admission_counts_tokens",
    edits=(
        Edit(
            SCHEDULER,
            """\
        reserved = sum(req.pages_needed(page_size) for req in self.admitted.values() if req.phase != RETIRED)
        if self.retired and reserved > self.cache.available_pages:
""",
            """\
        reserved = sum(req.remain_len for req in self.admitted.values() if req.phase != RETIRED)
        if self.retired and reserved > self.cache.available_pages * page_size:
""",
        ),
        Edit(
            PREFILL,
            """\
                reserved_pages += req.pages_needed(self._cache.page_size)
""",
            """\
                reserved_pages += req.max_device_len - 1 - req.cached_len
""",
        ),
        Edit(
            PREFILL,
            """\
        need = reserved_pages + req.pages_in_all(page_size) - handle.prefix_len // page_size
        if need > self._cache.available_pages:
            return self._refuse(req, NO_ROOM, need, self._cache.available_pages)
        self._cache.lock(handle)
        if need > self._cache.available_pages:
""",
            """\
        need = reserved_pages + req.max_device_len - 1 - handle.prefix_len
        if need > self._cache.available_pages * page_size:
            return self._refuse(req, NO_ROOM, need, self._cache.available_pages)
        self._cache.lock(handle)
        if need > self._cache.available_pages * page_size:
""",
        ),
    ),
    rule="admitted_requests_fit",
    undoes="deviation 6, L6",
    sentence="Admission adds up tokens, allocation rounds every request up to whole pages.",
    judges=(OWNERSHIP,),
    why="Too much is promised; what is there is well formed, and slots hold their tokens.",
)

ROW_WIDTH_OF_32 = Fault(
    name="row_width_of_32",
    edits=(
        Edit(
            TABLE,
            """\
        self.row_width = align_up(max_seq_len, page_size)
""",
            """\
        self.row_width = align_up(max_seq_len, 32)
""",
        ),
        Edit(
            TABLE,
            """\
        self._host = _HostRows(self) if self.page_table.device.type == "cpu" else None
""",
            """\
        self._host: _HostRows | None = None
""",
        ),
        Edit(
            TABLE,
            """\
            self._refuse_write("write_row_pages", row, start, end)
""",
            """\
            raise IndexError(f"positions {start}:{end} of row {row} are outside its width {self.row_width}")
""",
        ),
    ),
    rule="rows_are_wide_enough",
    undoes="deviation 7, L7",
    sentence="A row is a multiple of 32 wide, not of page_size: the last page is written past its end.",
    judges=(STRUCTURE,),
    why="A width is wrong; pages keep one owner and slots their tokens.",
)

END_FROM_THE_NEXT_STEP = Fault(
    name="end_from_the_next_step",
    edits=(
        Edit(
            CORE,
            """\
        return LENGTH if self.output_len >= self.max_tokens else None
""",
            """\
        return None if self.can_decode else LENGTH
""",
        ),
        Edit(
            SCHEDULER,
            """\
        if reply.finish_reason is not None:
            self._end(req)
""",
            """\
        if reply.finish_reason is not None and not (reply.finish_reason == "length" and req.in_flight):
            self._end(req)
""",
        ),
    ),
    rule="ends_with_its_last_token",
    undoes="deviation 8, L8",
    sentence="Whether a request has ended is read off its lengths after the next step was launched.",
    why="It shows in the replies: every state behind them is a right one.",
)

UNDOS: dict[int, Fault] = {
    1: NO_ROW_REWRITE,
    2: ABORT_IN_FINAL_PREFILL,
    3: ABORT_AS_DECODE_FINISHES,
    4: REPLY_AFTER_THE_END,
    5: RELEASE_IN_FLIGHT,
    6: ADMISSION_COUNTS_TOKENS,
    7: ROW_WIDTH_OF_32,
    8: END_FROM_THE_NEXT_STEP,
}
"""By the number of the deviation."""
