"""Marks: named situations that a thorough run has been in, counted while programs run.

A rule that was never near its edge has not been tested. Each mark names an edge; `sometimes(name,
condition)` counts how often a program stood there. A default run of the fuzzer reaches all of them,
and says which it did not.

Counting looks at operations, events and views only, and changes nothing.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minisgl_spec.trace import Json
from minisgl_spec.units import div_ceil
from minisgl_spec.views import DECODE, PREFILL, RETIRED, ROOT, CacheView, EngineView, RequestView

if TYPE_CHECKING:
    from minisgl_conformance.cache_runner import CacheRunner
    from minisgl_conformance.engine_runner import EngineRunner, RunnerRequest
    from minisgl_conformance.manager_runner import ManagerRunner


@dataclass(frozen=True)
class Mark:
    """A situation, and what a target has to show for it to be seen."""

    name: str
    level: str
    sentence: str


_CACHE_MARKS = {
    "prompt_repeated": "The same tokens are inserted a second time.",
    "prompt_of_whole_pages": "A prompt is a whole number of pages long.",
    "prompt_of_whole_pages_and_one": "A prompt is one token longer than whole pages.",
    "prompt_of_one_token": "A prompt has one token.",
    "match_of_nothing": "A match finds nothing.",
    "match_of_everything": "A match finds all of its tokens.",
    "match_of_a_part": "A match finds some of its tokens.",
    "node_split": "A node is split.",
    "locked_node_split": "A locked node is split.",
    "insertion_finds_duplicates": "An insertion brings pages that are cached already.",
    "insertion_behind_a_lock": "An insertion goes on behind a locked prefix.",
    "insertion_leaves_a_tail": "An insertion has a tail shorter than a page.",
    "insertion_without_pages": "The pool is too empty for an insertion.",
    "pool_without_free_pages": "Every page of the pool is cached.",
    "eviction": "Something is evicted.",
    "eviction_of_nothing": "An eviction of size 0 is asked for.",
    "eviction_of_everything": "All that may be evicted is.",
    "eviction_beside_a_lock": "Something is evicted while a lock protects something else.",
    "eviction_cascade": "A node is evicted after its last child in the same call.",
    "chain_with_a_locked_middle": "A locked node has an unlocked child and a parent that is not the root.",
    "two_locks_on_one_node": "Two locked handles name one node.",
    "root_locked": "A handle of nothing is locked.",
    "refused_second_lock": "A locked handle is locked again.",
    "refused_lock_of_the_evicted": "A handle is locked whose node was evicted.",
    "refused_unlock": "A handle is unlocked that is not locked.",
    "refused_eviction_of_too_much": "More is to be evicted than may be.",
    "refused_eviction_of_less_than_nothing": "An eviction has a negative size.",
    "refused_insertion": "An insertion has fewer slots than tokens.",
    "refused_reset": "The cache is to be emptied while something is locked.",
    "cache_reset": "The cache is emptied.",
    "naive_cache": "Nothing is cached.",
}

_MANAGER_MARKS = {
    "prompt_repeated": "A sequence was started before.",
    "prompt_of_whole_pages": "A sequence is a whole number of pages long.",
    "prompt_of_one_token": "A sequence has one token.",
    "prefix_found": "A sequence starts with a cached prefix.",
    "everything_but_the_last_token_found": "A sequence starts with one token left to compute.",
    "start_without_a_row": "A sequence waits for a row.",
    "row_reused": "A row is given to a second sequence.",
    "extension_within_a_page": "An extension needs no new page.",
    "extension_across_a_page": "An extension takes a new page behind a partial one.",
    "extension_without_room": "An extension waits for pages.",
    "eviction": "Something is evicted.",
    "eviction_beside_a_lock": "Something is evicted while a lock protects something else.",
    "eviction_cascade": "A node is evicted after its last child for the same extension.",
    "node_split": "A node is split.",
    "locked_node_split": "A locked node is split.",
    "chain_with_a_locked_middle": "A locked node has an unlocked child and a parent that is not the root.",
    "duplicates_remapped": "A commit points a row at pages that another sequence cached first.",
    "commit_leaves_a_tail": "A commit has a tail shorter than a page.",
    "commit_of_nothing_new": "A commit finds nothing that was not committed before.",
    "finish_before_any_commit": "A sequence ends that was never committed.",
    "abort_of_the_uncommitted": "A sequence is aborted with positions that were not committed.",
    "abort_at_once": "A sequence is aborted before it was extended.",
    "refused_live_uid": "A live uid is started again.",
    "refused_unknown_uid": "Something is done to a uid that is not live.",
    "refused_sequence": "A sequence is empty, or can never fit.",
    "refused_extension": "An extension goes nowhere, or past the sequence.",
    "naive_cache": "A sequence runs without a cache.",
}

_ENGINE_MARKS = {
    "prompt_repeated": "A prompt was submitted before.",
    "prompt_extends_a_prompt": "A prompt begins with an earlier prompt.",
    "prompt_extends_an_output": "A prompt begins with an earlier prompt and its outputs.",
    "prompt_of_whole_pages": "A prompt is a whole number of pages long.",
    "prompt_of_whole_pages_and_one": "A prompt is one token longer than whole pages.",
    "prompt_of_one_token": "A prompt has one token.",
    "one_token_to_generate": "A request asks for one token.",
    "max_tokens_clamped": "A request asks for more tokens than its row has room for.",
    "uid_used_again": "A uid is used again after its request has ended.",
    "sampling_with_temperature": "A request is sampled with a temperature.",
    "sampling_with_top_k": "A request is sampled from its top_k tokens.",
    "sampling_with_top_p": "A request is sampled from the tokens that hold top_p of the probability.",
    "refused_duplicate_uid": "A live request's uid is submitted again.",
    "refused_empty_prompt": "An empty prompt is submitted.",
    "refused_token_out_of_range": "A token is not in the vocabulary.",
    "refused_max_tokens_not_positive": "No token, or fewer, are asked for.",
    "refused_bad_temperature": "The temperature is negative, infinite or no number.",
    "refused_bad_top_k": "top_k is negative.",
    "refused_bad_top_p": "top_p is no probability above 0.",
    "refused_prompt_too_long": "A prompt leaves no room for an output.",
    "refused_larger_than_pool": "A request needs more pages than there are.",
    "abort_of_a_waiting_request": "A request is aborted before it was admitted.",
    "abort_between_chunks": "A request is aborted between two chunks of its prompt.",
    "abort_with_a_prefill_in_flight": "A request is aborted while a batch computes its prompt.",
    "abort_with_a_decode_in_flight": "A request is aborted while a batch decodes it.",
    "abort_between_decodes": "A request is aborted between two decodes.",
    "abort_of_a_finished_request": "A request is aborted that has ended.",
    "abort_of_a_retired_request": "A request is aborted that has ended and is still in flight.",
    "abort_of_an_unknown_request": "A uid is aborted that was never accepted.",
    "abort_twice": "A request is aborted a second time.",
    "ended_by_eos": "A request ends with an EOS token.",
    "ended_by_stop_id": "A request ends with one of its own stop tokens.",
    "ended_by_length": "A request ends with its max_tokens-th token.",
    "eos_ignored": "A request goes on after an EOS token.",
    "admission_no_row": "The head of the line waits for a row.",
    "admission_no_room": "The head of the line waits for pages.",
    "admission_no_room_after_lock": "The head of the line fits only until its prefix is locked.",
    "free_memory_is_the_matched_prefix": "No page is free but those of the prefix being matched.",
    "prefix_found": "A request is admitted with a cached prefix.",
    "everything_but_the_last_token_found": "A request is admitted with one token left to compute.",
    "chunk": "A prompt is computed in part.",
    "chunk_of_one_token": "A chunk of a prompt has one token.",
    "chunk_beside_another_request": "A chunk shares its batch with another request.",
    "prefill_of_two_requests": "A batch computes the prompts of two requests.",
    "decode_of_two_requests": "A batch decodes two requests.",
    "page_boundary_in_decode": "A decode takes a new page.",
    "eviction": "A batch evicts.",
    "eviction_beside_a_lock": "A batch evicts beside a locked prefix.",
    "eviction_cascade": "A node is evicted after its last child for the same batch.",
    "node_split": "A node is split.",
    "locked_node_split": "A locked node is split.",
    "duplicates_remapped": "A row is pointed at pages that another request cached first.",
    "duplicates_released": "A request gives back pages that another cached first.",
    "tail_released": "A request gives back a partial last page.",
    "duplicates_retired": "Duplicate pages wait for a batch in flight.",
    "request_retired": "A request has ended and waits for a batch in flight.",
    "row_reused": "A row is given to a second request.",
    "row_reused_while_others_wait": "A row is given to a second request while others wait.",
    "chain_with_a_locked_middle": "A locked node has an unlocked child and a parent that is not the root.",
    "cache_reset": "The cache is emptied.",
    "refused_reset": "The cache is to be emptied while a request holds a part of it.",
    "naive_cache": "A request runs without a cache.",
    "overlap_loop": "A batch is launched before the last one is processed.",
    "work_runs_late": "The streams have done nothing of a launched batch but what they had to.",
    "work_runs_in_part": "The streams have done a part of what is enqueued.",
}

MARKS: dict[str, dict[str, Mark]] = {
    level: {name: Mark(name, level, sentence) for name, sentence in sentences.items()}
    for level, sentences in (
        ("cache", _CACHE_MARKS),
        ("manager", _MANAGER_MARKS),
        ("engine", _ENGINE_MARKS),
    )
}


class Marks:
    """How often the marks of one level were reached."""

    def __init__(self, level: str) -> None:
        self.known = MARKS[level]
        self.counts: Counter[str] = Counter()
        self.rows: set[int] = set()  # given to a request before
        self.prompts: set[tuple[int, ...]] = set()
        self.committed: set[int] = set()  # uids

    def sometimes(self, name: str, condition: object) -> None:
        """Count a situation if it is there; the name must be a mark of the level."""
        mark = self.known[name]
        if condition:
            self.counts[mark.name] += 1


# -- level cache -------------------------------------------------------------------------------


def mark_cache(runner: CacheRunner, op: Json, event: Json, before: CacheView | None) -> None:
    """Count the situations of one operation of a cache."""
    marks = runner.marks
    if "refused" in event:
        _mark_cache_refusal(marks, runner, op)
    elif event.get("skipped") == "no_pages":
        marks.sometimes("insertion_without_pages", True)
    elif "skipped" not in event:
        name = op["op"]
        if name in ("match", "insert"):
            _mark_cache_prompt(marks, runner, op, event)
        elif name == "lock":
            marks.sometimes("root_locked", not runner.handles[op["handle"]].ids)
        marks.sometimes("cache_reset", name == "reset")
        marks.sometimes("naive_cache", runner.is_naive)
        if runner.view is not None and before is not None:
            _mark_tree(marks, before, runner.view)
            _mark_cache_view(marks, runner, op, before)


def _mark_cache_refusal(marks: Marks, runner: CacheRunner, op: Json) -> None:
    name = op["op"]
    is_locked = name == "lock" and runner.handles[op["handle"]].is_locked
    marks.sometimes("refused_second_lock", is_locked)
    marks.sometimes("refused_lock_of_the_evicted", name == "lock" and not is_locked)
    marks.sometimes("refused_unlock", name == "unlock")
    marks.sometimes("refused_eviction_of_less_than_nothing", name == "evict" and op["size"] < 0)
    marks.sometimes("refused_eviction_of_too_much", name == "evict" and op["size"] > 0)
    marks.sometimes("refused_insertion", name == "insert")
    marks.sometimes("refused_reset", name == "reset")


def _mark_cache_prompt(marks: Marks, runner: CacheRunner, op: Json, event: Json) -> None:
    ids, prefix_len, size = tuple(op["ids"]), event["prefix_len"], runner.page_size
    if op["op"] == "match":
        marks.sometimes("match_of_nothing", ids and prefix_len == 0)
        marks.sometimes("match_of_everything", ids and prefix_len == len(ids))
        marks.sometimes("match_of_a_part", 0 < prefix_len < len(ids))
        return
    own_len = 0
    if op.get("handle") is not None and runner.handles[op["handle"]].is_locked:
        own = runner.handles[op["handle"]].ids
        own_len = len(own) if ids[: len(own)] == own else 0
    marks.sometimes("prompt_repeated", ids in marks.prompts)
    marks.sometimes("prompt_of_whole_pages", ids and len(ids) % size == 0)
    marks.sometimes("prompt_of_whole_pages_and_one", len(ids) > size > 1 and len(ids) % size == 1)
    marks.sometimes("prompt_of_one_token", len(ids) == 1)
    marks.sometimes("insertion_finds_duplicates", prefix_len > own_len)
    marks.sometimes("insertion_behind_a_lock", 0 < own_len < len(ids))
    marks.sometimes("insertion_leaves_a_tail", len(ids) % size)
    marks.sometimes("pool_without_free_pages", not runner.free_pages)
    marks.prompts.add(ids)


def _mark_cache_view(marks: Marks, runner: CacheRunner, op: Json, before: CacheView) -> None:
    view: CacheView = runner.view
    named = [handle.node_id for handle in view.locked_handles if handle.node_id != ROOT]
    marks.sometimes("two_locks_on_one_node", len(set(named)) < len(named))
    if op["op"] == "evict":
        gone = before.evictable_size - view.evictable_size
        marks.sometimes("eviction", gone)
        marks.sometimes("eviction_of_nothing", op["size"] == 0)
        marks.sometimes("eviction_of_everything", gone and view.evictable_size == 0)
        marks.sometimes("eviction_beside_a_lock", gone and view.protected_size)
        marks.sometimes("eviction_cascade", _is_cascade(before, view))


def _mark_tree(marks: Marks, before: CacheView, after: CacheView) -> None:
    if before.nodes == after.nodes:
        return
    lengths = {node.node_id: len(node.key) for node in before.nodes}
    split = [node for node in after.nodes if len(node.key) < lengths.get(node.node_id, 0)]
    marks.sometimes("node_split", split)
    marks.sometimes("locked_node_split", any(node.ref_count for node in split))
    locked = {node.node_id for node in after.nodes if node.ref_count and node.parent not in (None, ROOT)}
    marks.sometimes(
        "chain_with_a_locked_middle",
        any(node.ref_count == 0 and node.parent in locked for node in after.nodes),
    )


def _is_cascade(before: CacheView, after: CacheView) -> bool:
    left = {node.node_id for node in after.nodes}
    gone = {node.node_id for node in before.nodes} - left
    return any(node.parent in gone for node in before.nodes if node.node_id in gone)


# -- level manager -----------------------------------------------------------------------------


def mark_manager(runner: ManagerRunner, op: Json, event: Json, before: EngineView | None) -> None:
    """Count the situations of one operation of a manager."""
    marks = runner.marks
    if "skipped" in event:
        return
    if "refused" in event:
        is_live = op["uid"] in runner.live
        marks.sometimes("refused_live_uid", op["op"] == "start" and is_live)
        marks.sometimes("refused_sequence", op["op"] == "start" and not is_live)
        marks.sometimes("refused_extension", op["op"] == "extend" and is_live)
        marks.sometimes("refused_unknown_uid", op["op"] != "start" and not is_live)
        return
    if op["op"] == "start":
        _mark_start(marks, runner, op, event)
    view = runner.view
    if before is None or view is None:
        return
    _mark_tree(marks, before.cache, view.cache)
    was = next((request for request in before.requests if request.uid == op["uid"]), None)
    now = next((request for request in view.requests if request.uid == op["uid"]), None)
    if op["op"] == "start" and now is not None:
        marks.sometimes("row_reused", now.row in marks.rows)
        marks.rows.add(now.row if now.row is not None else -1)
    elif op["op"] == "extend" and was is not None and now is not None:
        _mark_extension(marks, event, before, view, was, now)
    elif was is not None:
        _mark_end(marks, runner, op, was, now)


def _mark_start(marks: Marks, runner: ManagerRunner, op: Json, event: Json) -> None:
    ids, found = tuple(op["ids"]), event["cached_len"]
    marks.sometimes("prompt_repeated", ids in marks.prompts)
    marks.sometimes("prompt_of_whole_pages", len(ids) % runner.page_size == 0)
    marks.sometimes("prompt_of_one_token", len(ids) == 1)
    marks.sometimes("start_without_a_row", found is None)
    marks.sometimes("prefix_found", found)
    marks.sometimes("everything_but_the_last_token_found", found and found == len(ids) - 1)
    marks.sometimes("naive_cache", runner.config.get("cache") == "naive")
    marks.prompts.add(ids)
    marks.committed.discard(op["uid"])


def _mark_extension(
    marks: Marks, event: Json, before: EngineView, view: EngineView, was: RequestView, now: RequestView
) -> None:
    gone = {node.node_id for node in before.cache.nodes} - {node.node_id for node in view.cache.nodes}
    takes = len(now.row_slots) > len(was.row_slots)
    marks.sometimes("extension_without_room", not event["has_room"])
    marks.sometimes("extension_within_a_page", event["has_room"] and not takes)
    marks.sometimes("extension_across_a_page", takes and was.written_len % view.page_size)
    marks.sometimes("eviction", gone)
    marks.sometimes("eviction_beside_a_lock", gone and view.cache.protected_size)
    marks.sometimes("eviction_cascade", _is_cascade(before.cache, view.cache))


def _mark_end(
    marks: Marks, runner: ManagerRunner, op: Json, was: RequestView, now: RequestView | None
) -> None:
    covered = was.handle.prefix_len if was.handle is not None else 0
    if now is not None:
        marks.sometimes("duplicates_remapped", now.row_slots != was.row_slots)
        marks.sometimes("commit_leaves_a_tail", was.written_len % runner.page_size)
        marks.sometimes("commit_of_nothing_new", was.handle == now.handle)
        marks.committed.add(op["uid"])
    elif op["op"] == "finish":
        marks.sometimes("finish_before_any_commit", op["uid"] not in marks.committed)
    else:
        marks.sometimes("abort_at_once", was.written_len == covered)
        marks.sometimes("abort_of_the_uncommitted", was.written_len >= covered + runner.page_size)


# -- level engine ------------------------------------------------------------------------------


def mark_engine(runner: EngineRunner, op: Json, event: Json, before: EngineView | None) -> None:
    """Count the situations of one operation of an engine."""
    marks = runner.marks
    if op["op"] == "submit":
        _mark_submit(marks, runner, op, event)
    elif op["op"] == "abort":
        _mark_abort(marks, runner, op, event, before)
    elif op["op"] == "reset":
        marks.sometimes("cache_reset", event["accepted"])
        marks.sometimes("refused_reset", not event["accepted"] and "skipped" not in event)
    else:
        _mark_streams(marks, runner, op)
    if before is not None and runner.view is not None:
        _mark_tree(marks, before.cache, runner.view.cache)
        _mark_inner(marks, runner, before)
        retired = [request for request in runner.view.requests if request.phase == RETIRED]
        marks.sometimes("request_retired", retired)
        marks.sometimes("duplicates_retired", runner.view.retired_pages)
    _mark_ends(marks, runner)


def _mark_submit(marks: Marks, runner: EngineRunner, op: Json, event: Json) -> None:
    if "skipped" in event:
        return
    if not event["accepted"]:
        name = f"refused_{event['reason']}"
        if name in _ENGINE_MARKS:  # a foreign engine may have reasons of its own
            marks.sometimes(name, True)
        return
    request, ids, size = runner.requests[-1], tuple(op["ids"]), runner.limits.page_size
    earlier = runner.requests[:-1]
    marks.sometimes("prompt_repeated", any(r.submission.ids == ids for r in earlier))
    marks.sometimes("prompt_extends_a_prompt", any(_extends(ids, r.submission.ids) for r in earlier))
    marks.sometimes(
        "prompt_extends_an_output",
        any(r.outputs and _extends(ids, (*r.submission.ids, *r.outputs)) for r in earlier),
    )
    marks.sometimes("prompt_of_whole_pages", len(ids) % size == 0)
    marks.sometimes("prompt_of_whole_pages_and_one", len(ids) > size > 1 and len(ids) % size == 1)
    marks.sometimes("prompt_of_one_token", len(ids) == 1)
    marks.sometimes("one_token_to_generate", op["max_tokens"] == 1)
    marks.sometimes("max_tokens_clamped", request.max_tokens < op["max_tokens"])
    marks.sometimes("uid_used_again", any(r.uid == op["uid"] for r in earlier))
    sampling = request.submission.sampling
    marks.sometimes("sampling_with_temperature", sampling.temperature)
    marks.sometimes("sampling_with_top_k", sampling.temperature and sampling.top_k)
    marks.sometimes("sampling_with_top_p", sampling.temperature and sampling.top_p < 1)


def _extends(ids: tuple[int, ...], earlier: tuple[int, ...]) -> bool:
    return len(ids) > len(earlier) and ids[: len(earlier)] == earlier


def _mark_abort(marks: Marks, runner: EngineRunner, op: Json, event: Json, before: EngineView | None) -> None:
    known = runner.current.get(op["uid"])
    held = [r for r in before.requests if r.uid == op["uid"]] if before is not None else []
    if "skipped" in event:
        return
    if not event["accepted"]:
        marks.sometimes("abort_of_an_unknown_request", known is None)
        marks.sometimes("abort_twice", known is not None and known.is_aborted)
        marks.sometimes("abort_of_a_finished_request", known is not None and not known.is_aborted)
        marks.sometimes("abort_of_a_retired_request", held and known is not None and not known.is_aborted)
    elif held and before is not None:
        _mark_abort_phase(marks, held[-1], before)


def _mark_abort_phase(marks: Marks, request: RequestView, before: EngineView) -> None:
    in_flight = [entry for entry in before.in_flight if entry.uid == request.uid]
    prefilling = any(entry.cached_len < request.prompt_len for entry in in_flight)
    marks.sometimes("abort_of_a_waiting_request", request.row is None)
    marks.sometimes("abort_between_chunks", request.phase == PREFILL and not in_flight)
    marks.sometimes("abort_with_a_prefill_in_flight", prefilling)
    marks.sometimes("abort_with_a_decode_in_flight", in_flight and not prefilling)
    marks.sometimes("abort_between_decodes", request.phase == DECODE and not in_flight)


def _mark_streams(marks: Marks, runner: EngineRunner, op: Json) -> None:
    if runner.view is None or not runner.view.in_flight or runner.config.get("streams") != "simulated":
        return
    progress = op.get("progress", [])
    marks.sometimes("work_runs_late", not any(progress))
    marks.sometimes("work_runs_in_part", any(step >= 2 for step in progress))


def _mark_inner(marks: Marks, runner: EngineRunner, before: EngineView) -> None:
    view: EngineView = runner.view
    requests = {request.uid: request for request in (*before.requests, *view.requests)}
    phase = next((event["phase"] for event in runner.inner if event["do"] == "launch"), None)
    for event in runner.inner:
        do = event["do"]
        if do == "admit":
            _mark_admission(marks, event, requests.get(event["uid"]), view)
        elif do == "refuse":
            marks.sometimes(f"admission_{event['why']}", True)
            is_matched = event["why"] == "no_room_after_lock" and not before.free_pages
            marks.sometimes("free_memory_is_the_matched_prefix", is_matched)
        elif do == "evict":
            marks.sometimes("eviction", True)
            marks.sometimes("eviction_beside_a_lock", view.cache.protected_size)
            marks.sometimes("eviction_cascade", _is_cascade(before.cache, view.cache))
        elif do == "take":
            marks.sometimes("page_boundary_in_decode", phase == DECODE)
        elif do == "launch":
            _mark_launch(marks, event, runner)
        elif do == "insert":
            marks.sometimes("duplicates_remapped", event["duplicates"])
        elif do == "release":
            _mark_release(marks, event, requests.get(event["uid"]), view.page_size)


def _mark_admission(marks: Marks, event: Json, request: RequestView | None, view: EngineView) -> None:
    """Count an admission; a view need not list the request that was admitted and ended in one step."""
    prompt_len = request.prompt_len if request is not None else 0
    waiting = [r for r in view.requests if r.row is None]
    marks.sometimes("prefix_found", event["cached_len"])
    marks.sometimes("everything_but_the_last_token_found", event["cached_len"] == prompt_len - 1 > 0)
    marks.sometimes("row_reused", event["row"] in marks.rows)
    marks.sometimes("row_reused_while_others_wait", event["row"] in marks.rows and waiting)
    marks.rows.add(event["row"])


def _mark_launch(marks: Marks, event: Json, runner: EngineRunner) -> None:
    rows = event["requests"]
    chunks = [entry for entry in rows if not entry[3]]
    marks.sometimes("chunk", chunks)
    marks.sometimes("chunk_of_one_token", any(entry[2] - entry[1] == 1 for entry in chunks))
    marks.sometimes("chunk_beside_another_request", chunks and len(rows) > 1)
    marks.sometimes("prefill_of_two_requests", event["phase"] == PREFILL and len(rows) > 1)
    marks.sometimes("decode_of_two_requests", event["phase"] == DECODE and len(rows) > 1)
    marks.sometimes("naive_cache", runner.config.get("cache") == "naive")
    marks.sometimes("overlap_loop", len({entry.batch for entry in runner.view.in_flight}) > 0)


def _mark_release(marks: Marks, event: Json, request: RequestView | None, page_size: int) -> None:
    if request is None:
        return
    covered = request.handle.prefix_len if request.handle is not None else 0
    num_duplicates = max(0, event["prefix_len"] - covered) // page_size
    num_tail = div_ceil(len(request.row_slots), page_size) - event["insert_len"] // page_size
    marks.sometimes("duplicates_released", num_duplicates)
    marks.sometimes("tail_released", num_tail > 0 and request.written_len % page_size)


def _mark_ends(marks: Marks, runner: EngineRunner) -> None:
    eos_ids = runner.limits.eos_ids
    for event in runner.inner:
        if event["do"] != "reply" or event["token"] is None:
            continue
        request: RunnerRequest | None = runner.current.get(event["uid"])
        stop_ids = request.submission.stop_ids if request is not None else ()
        reason, token = event["finish_reason"], event["token"]
        marks.sometimes("ended_by_eos", reason == "stop" and token in eos_ids and token not in stop_ids)
        marks.sometimes("ended_by_stop_id", reason == "stop" and token in stop_ids)
        marks.sometimes("ended_by_length", reason == "length")
        marks.sometimes("eos_ignored", token in eos_ids and reason is None)
