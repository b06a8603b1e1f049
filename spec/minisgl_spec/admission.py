"""Admission: which waiting requests join a prefill batch, and with how many tokens each.

First come, first served. A request is admitted when a row is free and when the pages it may still
need, together with those promised to every admitted request, are within free plus evictable
pages: counted before its prefix is locked, and again after, because the lock takes the prefix out
of what is evictable. Each admitted request gets as much of the step's token budget as its prompt
can use; the first that gets less than it needs is chunked and stays at the head.

Pages are promised here and taken in `scheduler.py`, once the batch is certain.
Chapter: spec/05-prefill-and-chunking.md
"""

from __future__ import annotations

from minisgl_spec.cache import PrefixCache
from minisgl_spec.page_pool import RowPool
from minisgl_spec.requests import Request, pages_for
from minisgl_spec.trace import Json
from minisgl_spec.units import slots_to_pages
from minisgl_spec.views import PREFILL, RETIRED, WAITING

NO_ROW, NO_ROOM, NO_ROOM_AFTER_LOCK = "no_row", "no_room", "no_room_after_lock"
"""Why the head of the line is not admitted now."""


def reserved_pages(requests: list[Request], page_size: int) -> int:
    """Return the pages promised to admitted requests and not taken yet."""
    return sum(
        request.pages_still_needed(page_size)
        for request in requests
        if request.phase not in (WAITING, RETIRED)
    )


def try_admit(
    request: Request, admitted: list[Request], cache: PrefixCache, rows: RowPool, events: list[Json]
) -> bool:
    """Admit one waiting request, or say in `events` why not now.

    Mutates: on success locks a handle, takes a row and fills the request's row with the slots of
             the matched prefix; on refusal nothing but the tree's splits and last_used.
    Keeps:   admitted_requests_fit, handle_is_locked, page_table_follows_handle.
    Spec:    05-prefill-and-chunking.md#admission
    """
    page_size = cache.page_size
    # CHECK
    if not rows.free_rows:
        events.append(_refusal(request, NO_ROW, 1, 0))
        return False
    # FIND
    handle = cache.match_all_but_last(request.ids)
    need = pages_for(request.prompt_len, request.max_tokens, page_size) - handle.prefix_len // page_size
    need += reserved_pages(admitted, page_size)
    if need > cache.available_pages:
        events.append(_refusal(request, NO_ROOM, need, cache.available_pages))
        return False
    cache.tree.lock(handle)
    if need > cache.available_pages:
        events.append(_refusal(request, NO_ROOM_AFTER_LOCK, need, cache.available_pages))
        cache.tree.unlock(handle)
        return False
    # CHANGE
    request.handle = handle
    request.row = rows.take()
    request.row_slots = handle.slots()
    request.admitted_len = request.cached_len = request.written_len = handle.prefix_len
    request.phase = PREFILL
    # RETURN
    events.append(
        {
            "do": "admit",
            "uid": request.uid,
            "row": request.row,
            "cached_len": request.cached_len,
            "pages": list(slots_to_pages(request.row_slots, page_size)),
        }
    )
    return True


def take_chunk(request: Request, budget: int) -> int:
    """Give an admitted request its share of the token budget; return the tokens it uses."""
    request.device_len = min(request.prompt_len, request.cached_len + budget)
    return request.device_len - request.cached_len


def _refusal(request: Request, why: str, need: int, available: int) -> Json:
    return {"do": "refuse", "uid": request.uid, "why": why, "need": need, "available": available}
