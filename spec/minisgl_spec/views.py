"""Views: frozen pictures of a cache or an engine, in plain ints and tuples, that every judge reads.

A view is taken after an operation and compared, checked or drawn; it shares nothing with what it
shows. It can describe every broken state: a handle whose node is gone names a node that is not
listed, a page that is owned twice is listed twice. Views are named tuples because every operation of a
program builds and compares two: a frozen dataclass takes three times as long.

A view never decides whether a state is right; `invariants.py` does.
Chapter: spec/01-pages-and-slots.md, spec/04-requests.md
"""

from __future__ import annotations

from typing import NamedTuple

from minisgl_spec.units import Page, Row, Slot, Token, Uid

ROOT = 0
"""The node number of a tree's root."""

WAITING, PREFILL, DECODE, RETIRED = "waiting", "prefill", "decode", "retired"
"""Phases of a request: not admitted; prompt not launched whole; generating; replied, but in flight."""


class NodeView(NamedTuple):
    """One node of the radix tree; nodes are numbered in order of creation, the root is `ROOT`."""

    node_id: int
    parent: int | None
    children: tuple[tuple[tuple[Token, ...], int], ...]  # (first page of the child's key, node_id)
    key: tuple[Token, ...]
    slots: tuple[Slot, ...]
    ref_count: int
    last_used: int


class HandleView(NamedTuple):
    """What a match or an insertion returned: the node it names and the tokens it covers."""

    node_id: int
    prefix_len: int
    is_locked: bool


class CacheView(NamedTuple):
    """A prefix cache: its nodes in order of creation, its locked handles, its two sizes in slots."""

    page_size: int
    nodes: tuple[NodeView, ...]
    locked_handles: tuple[HandleView, ...]
    evictable_size: int
    protected_size: int


class RequestView(NamedTuple):
    """One request that the engine still holds something of."""

    uid: Uid
    phase: str
    ids: tuple[Token, ...]  # prompt and outputs known to the host
    prompt_len: int
    cached_len: int  # KV present, or being written by a launched batch, in [0, cached_len)
    device_len: int  # tokens known after the next step
    max_device_len: int  # prompt_len + max_tokens
    written_len: int  # positions written by processed batches, or found in the tree
    row: Row | None  # None while waiting
    row_slots: tuple[Slot, ...]  # the host's mapping of the row: whole pages
    handle: HandleView | None  # None while waiting
    num_in_flight: int  # launched batches that hold it and are not processed


class InFlightView(NamedTuple):
    """One request in a launched batch: it reads [0, device_len) and writes [cached_len, device_len)."""

    batch: int
    uid: Uid
    row: Row
    cached_len: int
    device_len: int
    out_loc: tuple[Slot, ...]


class EngineView(NamedTuple):
    """An engine between two operations: its cache, pools, requests and batches in flight."""

    cache: CacheView
    page_size: int
    num_pages: int
    num_rows: int
    row_width: int
    free_pages: tuple[Page, ...]
    retired_pages: tuple[Page, ...]
    free_rows: tuple[Row, ...]
    requests: tuple[RequestView, ...]  # in order of admission, then of arrival
    in_flight: tuple[InFlightView, ...]
