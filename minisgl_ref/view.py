"""Engine state as `minisgl_spec.views`: what judges, checks and drawings read.

A view shows the host's mapping of a row; what the device held when a batch ran is in its execution
record. Broken states are shown as they are.

Nothing here decides or changes anything.
Chapter: spec/04-requests.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minisgl_ref.core import Req
from minisgl_ref.kvcache.base import tokens_of
from minisgl_spec.units import pages_to_slots
from minisgl_spec.views import EngineView, InFlightView, RequestView

if TYPE_CHECKING:
    from minisgl_ref.scheduler.scheduler import Scheduler


def view_engine(scheduler: Scheduler) -> EngineView:
    """Return a picture of a scheduler and all it owns."""
    cache, table = scheduler.cache, scheduler.table
    admitted = list(scheduler.admitted.values())
    waiting = [req for req in scheduler.requests.values() if req.handle is None]
    return EngineView(
        cache=cache.prefix_cache.view(),
        page_size=cache.page_size,
        num_pages=cache.num_pages,
        num_rows=table.num_rows,
        row_width=table.row_width,
        free_pages=tuple(cache.free_pages),
        retired_pages=tuple(page for _, pages in scheduler.retired for page in pages),
        free_rows=tuple(table.free_rows),
        requests=tuple(_view_request(req, cache.page_size) for req in (*admitted, *waiting)),
        in_flight=tuple(
            InFlightView(
                batch=batch.number,
                uid=entry.req.uid,
                row=entry.req.row,
                cached_len=entry.cached_len,
                device_len=entry.device_len,
                out_loc=pages_to_slots(entry.req.pages, cache.page_size)[entry.cached_len : entry.device_len],
            )
            for batch, _ in scheduler.in_flight
            for entry in batch.entries
        ),
    )


def _view_request(req: Req, page_size: int) -> RequestView:
    return RequestView(
        uid=req.uid,
        phase=req.phase,
        ids=tokens_of(bytes(req.key)),
        prompt_len=req.prompt_len,
        cached_len=req.cached_len,
        device_len=req.device_len,
        max_device_len=req.max_device_len,
        written_len=req.written_len,
        row=None if req.handle is None else req.row,
        row_slots=pages_to_slots(req.pages, page_size),
        handle=None if req.handle is None else req.handle.view(),
        num_in_flight=len(req.in_flight),
    )
