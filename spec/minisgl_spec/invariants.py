"""Invariants: what is true of every view between two operations, one name and one sentence each.

An invariant recomputes its claim from scratch and yields one sentence per violation, with the
numbers. It never raises, changes nothing and uses nothing of the code under test. Three judges
group them: structure (is the data well formed), ownership (does every page and row have one
owner) and content (does every slot hold the tokens that name it).

What an operation promises, and what a whole run promises, is in `contracts.py`.
Chapter: spec/invariants.md (generated from the docstrings here)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from minisgl_spec.errors import InvariantError, Violation
from minisgl_spec.shadow import ShadowMemory
from minisgl_spec.units import align_down, div_ceil, slots_to_pages
from minisgl_spec.views import (
    RETIRED,
    ROOT,
    WAITING,
    CacheView,
    EngineView,
    HandleView,
    NodeView,
    RequestView,
)

STRUCTURE, OWNERSHIP, CONTENT = "structure", "ownership", "content"
JUDGES = (STRUCTURE, OWNERSHIP, CONTENT)


@dataclass(frozen=True, slots=True)
class ContentView:
    """A cache, its requests and the shadow memory of every slot: what the content judge reads."""

    cache: CacheView
    requests: tuple[RequestView, ...]
    shadow: ShadowMemory


@dataclass(frozen=True, slots=True)
class Invariant:
    """A named claim about a view."""

    name: str
    sentence: str
    judge: str
    view_type: type
    violations: Callable[[Any], Iterable[str]]


INVARIANTS: dict[str, Invariant] = {}

_RULES: dict[tuple[type, frozenset[str]], tuple[Invariant, ...]] = {}


def invariant(judge: str, view_type: type) -> Callable[[Callable[[Any], Iterator[str]]], Any]:
    """Register a generator of violations under its own name and its one-sentence docstring."""

    def register(function: Callable[[Any], Iterator[str]]) -> Callable[[Any], Iterator[str]]:
        sentence = " ".join((function.__doc__ or "").split())
        INVARIANTS[function.__name__] = Invariant(function.__name__, sentence, judge, view_type, function)
        _RULES.clear()
        return function

    return register


def violations(view: object, judges: Collection[str] = JUDGES) -> tuple[Violation, ...]:
    """Return every violation of the invariants that speak of this kind of view.

    An `EngineView` is judged together with the `CacheView` inside it; a `ContentView` by content.
    """
    cache = violations_of_part(view.cache, judges) if isinstance(view, EngineView) else ()
    return (*cache, *violations_of_part(view, judges))


def violations_of_part(view: object, judges: Collection[str] = JUDGES) -> tuple[Violation, ...]:
    """Return every violation of the invariants that speak of this view itself, not of a view inside it."""
    return tuple(
        [
            Violation(rule.name, fact)
            for rule in _rules_for(type(view), frozenset(judges))
            for fact in rule.violations(view)
        ]
    )


def _rules_for(view_type: type, judges: frozenset[str]) -> tuple[Invariant, ...]:
    """Return the invariants that speak of a kind of view, in order of definition; looked up once."""
    wanted = (view_type, judges)
    if wanted not in _RULES:
        rules = INVARIANTS.values()
        _RULES[wanted] = tuple(r for r in rules if r.judge in judges and issubclass(view_type, r.view_type))
    return _RULES[wanted]


def check(view: object, judges: Collection[str] = JUDGES) -> None:
    """Raise `InvariantError` with every violation of `view`, if there is one."""
    found = violations(view, judges)
    if found:
        raise InvariantError(found)


# -- the cache ---------------------------------------------------------------------------------


@invariant(STRUCTURE, CacheView)
def keys_page_aligned(view: CacheView) -> Iterator[str]:
    """Every node but the root holds a positive whole number of pages."""
    for node in view.nodes:
        if node.parent is not None and (not node.key or len(node.key) % view.page_size):
            yield f"node {node.node_id} holds {len(node.key)} tokens, page_size={view.page_size}"
        if len(node.key) != len(node.slots):
            yield f"node {node.node_id} has {len(node.key)} tokens and {len(node.slots)} slots"


@invariant(STRUCTURE, CacheView)
def slots_are_whole_pages(view: CacheView) -> Iterator[str]:
    """The slots of a node are whole pages, each in slot order."""
    size = view.page_size
    for node in view.nodes:
        for start in range(0, len(node.slots), size):
            page = node.slots[start : start + size]
            if page[0] % size or page != tuple(range(page[0], page[0] + size)):
                yield f"node {node.node_id} lists slots {page} as one page of {size}"


@invariant(STRUCTURE, CacheView)
def siblings_differ_in_first_page(view: CacheView) -> Iterator[str]:
    """Two children of one node never begin with the same page of tokens."""
    size = view.page_size
    first_pages = [(node.parent, node.key[:size]) for node in view.nodes if node.parent is not None]
    if len(set(first_pages)) == len(first_pages):
        return
    for (parent, page), count in Counter(first_pages).items():
        if count > 1:
            yield f"{count} children of node {parent} begin with {page}"


@invariant(STRUCTURE, CacheView)
def parents_and_children_agree(view: CacheView) -> Iterator[str]:
    """A node is in its parent's children under the first page of its own key, and only there."""
    nodes = {node.node_id: node for node in view.nodes}
    listed = _count([child for node in view.nodes for _, child in node.children])
    for node in view.nodes:
        times = listed.get(node.node_id, 0)
        if node.parent is None:
            if node.node_id != ROOT or times:
                yield f"node {node.node_id} has no parent, yet is a child {times} times"
            continue
        parent = nodes.get(node.parent)
        entry = (node.key[: view.page_size], node.node_id)
        if parent is None:
            yield f"node {node.node_id} has parent {node.parent}, which is not in the tree"
        elif entry not in parent.children or times != 1:
            yield (
                f"node {node.node_id} begins with {entry[0]}; its parent {parent.node_id} lists "
                f"{parent.children}"
            )
    for child in listed:
        if child not in nodes:
            yield f"node {child} is listed as a child but is not in the tree"


@invariant(STRUCTURE, CacheView)
def ref_count_counts_handles(view: CacheView) -> Iterator[str]:
    """A node's ref_count is the number of locked handles at or below it."""
    nodes = {node.node_id: node for node in view.nodes}
    paths = [_path(nodes, handle.node_id) for handle in view.locked_handles]
    handles = _count([node.node_id for path in paths for node in path])
    for node in view.nodes:
        count = handles.get(node.node_id, 0)
        if node.ref_count != count:
            yield f"node {node.node_id} has ref_count={node.ref_count}, {count} locked handles at or below"


@invariant(STRUCTURE, CacheView)
def locked_nodes_in_tree(view: CacheView) -> Iterator[str]:
    """The node of every locked handle is in the tree, and its path is as long as the handle says."""
    nodes = {node.node_id: node for node in view.nodes}
    for handle in view.locked_handles:
        if handle.node_id not in nodes:
            yield (
                f"a locked handle of {handle.prefix_len} tokens names node {handle.node_id}, "
                f"which is not in the tree"
            )
            continue
        length = sum([len(node.key) for node in _path(nodes, handle.node_id)])
        if length != handle.prefix_len:
            yield (
                f"a locked handle of {handle.prefix_len} tokens names node {handle.node_id}, "
                f"whose path holds {length}"
            )


@invariant(STRUCTURE, CacheView)
def sizes_match_locks(view: CacheView) -> Iterator[str]:
    """evictable_size and protected_size are the slots under ref_count 0 and above 0."""
    body = [node for node in view.nodes if node.parent is not None]
    evictable = sum([len(node.slots) for node in body if node.ref_count == 0])
    protected = sum([len(node.slots) for node in body if node.ref_count > 0])
    if (evictable, protected) != (view.evictable_size, view.protected_size):
        yield (
            f"recorded evictable_size={view.evictable_size}, protected_size={view.protected_size}; "
            f"counted {evictable}, {protected}"
        )


@invariant(OWNERSHIP, CacheView)
def slots_cached_once(view: CacheView) -> Iterator[str]:
    """No slot is cached by two nodes, or twice by one."""
    slots = [slot for node in view.nodes for slot in node.slots]
    if len(set(slots)) == len(slots):
        return
    owners: dict[int, list[int]] = {}
    for node in view.nodes:
        for slot in node.slots:
            owners.setdefault(slot, []).append(node.node_id)
    for slot, node_ids in sorted(owners.items()):
        if len(node_ids) > 1:
            yield f"slot {slot} is cached by nodes {node_ids}"


# -- requests, pages and rows ------------------------------------------------------------------


@invariant(OWNERSHIP, EngineView)
def pages_partitioned(view: EngineView) -> Iterator[str]:
    """Every page is free, cached by one node, private to one request, or retired: exactly one of these."""
    cached = [slots_to_pages(node.slots, view.page_size) for node in view.cache.nodes]
    private = [private_pages(request, view.page_size) for request in view.requests]
    owned = [*view.free_pages, *view.retired_pages, *chain(*cached, *private)]
    if sorted(owned) == list(range(view.num_pages)):
        return
    owners: dict[int, list[str]] = {page: [] for page in range(view.num_pages)}
    for page in view.free_pages:
        owners.setdefault(page, []).append("free")
    for page in view.retired_pages:
        owners.setdefault(page, []).append("retired")
    for node, pages in zip(view.cache.nodes, cached, strict=True):
        for page in pages:
            owners.setdefault(page, []).append(f"node {node.node_id}")
    for request, pages in zip(view.requests, private, strict=True):
        for page in pages:
            owners.setdefault(page, []).append(f"request {request.uid}")
    for page, names in sorted(owners.items()):
        if page >= view.num_pages or page < 0:
            yield f"page {page} is owned by {', '.join(names)}; there are {view.num_pages} pages"
        elif len(names) != 1:
            yield f"page {page} is owned by {', '.join(names) or 'nobody'}"


@invariant(OWNERSHIP, EngineView)
def rows_partitioned(view: EngineView) -> Iterator[str]:
    """Every row is free, held by exactly one request, or retired."""
    held = [request.row for request in view.requests if request.row is not None]
    if sorted((*view.free_rows, *held)) == list(range(view.num_rows)):
        return
    owners: dict[int, list[str]] = {row: [] for row in range(view.num_rows)}
    for row in view.free_rows:
        owners.setdefault(row, []).append("free")
    for request in view.requests:
        if request.row is not None:
            owners.setdefault(request.row, []).append(f"request {request.uid}")
    for row, names in sorted(owners.items()):
        if row >= view.num_rows or row < 0:
            yield f"row {row} is owned by {', '.join(names)}; there are {view.num_rows} rows"
        elif len(names) != 1:
            yield f"row {row} is owned by {', '.join(names) or 'nobody'}"


@invariant(OWNERSHIP, EngineView)
def in_flight_requests_are_held(view: EngineView) -> Iterator[str]:
    """A batch in flight touches only rows and pages that nobody else was given."""
    held = {(request.uid, request.row) for request in view.requests}
    free = set(view.free_pages)
    for entry in view.in_flight:
        if (entry.uid, entry.row) not in held:
            yield f"batch {entry.batch} in flight holds request {entry.uid}, which gave back row {entry.row}"
        lost = sorted({slot // view.page_size for slot in entry.out_loc} & free)
        if lost:
            yield f"batch {entry.batch} in flight writes request {entry.uid}'s KV to free pages {lost}"


@invariant(STRUCTURE, EngineView)
def lengths_ordered(view: EngineView) -> Iterator[str]:
    """Between steps, 0 <= cached_len < device_len <= max_device_len, and so for every launched request."""
    for request in view.requests:
        lengths = (0, request.cached_len, request.device_len, request.max_device_len)
        if request.phase != RETIRED and not (0 <= lengths[1] < lengths[2] <= lengths[3]):
            yield (
                f"request {request.uid} ({request.phase}) has cached_len={request.cached_len}, "
                f"device_len={request.device_len}, max_device_len={request.max_device_len}"
            )
    for entry in view.in_flight:
        if not 0 <= entry.cached_len < entry.device_len:
            yield (
                f"batch {entry.batch} computes nothing of request {entry.uid}: "
                f"cached_len={entry.cached_len}, device_len={entry.device_len}"
            )


@invariant(STRUCTURE, EngineView)
def rows_are_wide_enough(view: EngineView) -> Iterator[str]:
    """A row is a whole number of pages wide, and every position a request is mapped to is inside its row."""
    if view.row_width % view.page_size:
        yield f"row_width={view.row_width} is not a multiple of page_size={view.page_size}"
    for request in view.requests:
        if len(request.row_slots) > view.row_width:
            yield (
                f"request {request.uid} maps {len(request.row_slots)} positions; "
                f"its row has room for {view.row_width}"
            )


@invariant(STRUCTURE, EngineView)
def handle_is_locked(view: EngineView) -> Iterator[str]:
    """The handle of every admitted request is locked."""
    for request in view.requests:
        if request.phase == WAITING:
            continue
        if request.handle is None or not request.handle.is_locked:
            yield f"request {request.uid} ({request.phase}) has handle {request.handle}"


@invariant(OWNERSHIP, EngineView)
def page_table_follows_handle(view: EngineView) -> Iterator[str]:
    """Below the length of its handle, a request's row lists the slots of the handle's path."""
    nodes = {node.node_id: node for node in view.cache.nodes}
    for request in view.requests:
        if request.handle is None or request.handle.node_id not in nodes:
            continue
        path = _path_slots(nodes, request.handle)
        row = request.row_slots[: request.handle.prefix_len]
        if row != path[: request.handle.prefix_len]:
            yield f"request {request.uid} in row {request.row} lists slots {row}; its handle's path {path}"


@invariant(OWNERSHIP, EngineView)
def page_table_reads_live_pages(view: EngineView) -> Iterator[str]:
    """No position below cached_len of an admitted request is on a free page."""
    free = set(view.free_pages)
    for request in view.requests:
        pages = {slot // view.page_size for slot in request.row_slots[: request.cached_len]}
        if pages & free:
            yield f"request {request.uid} in row {request.row} reads free pages {sorted(pages & free)}"


@invariant(OWNERSHIP, EngineView)
def writes_are_private(view: EngineView) -> Iterator[str]:
    """Every slot in out_loc but the dummy's is on a page private to the request that writes it."""
    private = {request.uid: set(private_pages(request, view.page_size)) for request in view.requests}
    for entry in view.in_flight:
        pages = {slot // view.page_size for slot in entry.out_loc} - {view.num_pages}
        foreign = sorted(pages - private.get(entry.uid, set()))
        if foreign:
            yield f"batch {entry.batch} writes KV of request {entry.uid} to pages {foreign}, not its own"


@invariant(OWNERSHIP, EngineView)
def admitted_requests_fit(view: EngineView) -> Iterator[str]:
    """The slots admitted requests may still need never exceed available_size and the retired slots."""
    needed = {
        request.uid: pages_still_needed(request, view.page_size) * view.page_size
        for request in view.requests
        if request.phase not in (WAITING, RETIRED)
    }
    pages = len(view.free_pages) + len(view.retired_pages)
    available = pages * view.page_size + view.cache.evictable_size
    if sum(needed.values()) > available:
        yield (
            f"admitted requests may still need {sum(needed.values())} slots (by uid: {needed}); "
            f"there are {available} (free {len(view.free_pages)} pages, retired {len(view.retired_pages)}, "
            f"evictable_size={view.cache.evictable_size})"
        )


@invariant(STRUCTURE, EngineView)
def mapped_pages_cover_lengths(view: EngineView) -> Iterator[str]:
    """A request's row maps whole pages, at least the ones below cached_len and at most those it may need."""
    for request in view.requests:
        if request.phase == WAITING:
            continue
        pages, rest = divmod(len(request.row_slots), view.page_size)
        least = div_ceil(request.cached_len, view.page_size)
        most = div_ceil(request.max_device_len - 1, view.page_size)
        if rest or not least <= pages <= most:
            yield (
                f"request {request.uid} maps {len(request.row_slots)} slots; "
                f"cached_len={request.cached_len} needs {least} pages, all of it at most {most}"
            )


# -- content -----------------------------------------------------------------------------------


@invariant(CONTENT, ContentView)
def slots_hold_their_tokens(view: ContentView) -> Iterator[str]:
    """Every cached or admitted slot holds the KV of the token prefix that names it."""
    extend, read = view.shadow.extend, view.shadow.read
    nodes = {node.node_id: node for node in view.cache.nodes}
    prefixes: dict[int, int] = {ROOT: view.shadow.EMPTY}
    for node in _parents_first(nodes):
        prefix = prefixes[node.parent] if node.parent is not None else view.shadow.EMPTY
        for token, slot in zip(node.key, node.slots, strict=False):
            prefix = extend(prefix, token)
            if read(slot) != prefix:
                yield f"node {node.node_id}: slot {slot} {view.shadow.describe_mismatch(slot, prefix)}"
        prefixes[node.node_id] = prefix
    for request in view.requests:
        prefix = view.shadow.EMPTY
        written = request.written_len if request.row is not None else 0
        for token, slot in zip(request.ids[:written], request.row_slots, strict=False):
            prefix = extend(prefix, token)
            if read(slot) != prefix:
                yield f"request {request.uid}: slot {slot} {view.shadow.describe_mismatch(slot, prefix)}"


# -- shared arithmetic -------------------------------------------------------------------------


def _count(items: Iterable[int]) -> dict[int, int]:
    """Return how often each item comes; a `Counter` is slower for a handful."""
    counts: dict[int, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts


def private_pages(request: RequestView, page_size: int) -> tuple[int, ...]:
    """Return the pages of a request's row that its handle does not cover."""
    covered = request.handle.prefix_len if request.handle is not None else 0
    return slots_to_pages(request.row_slots[align_down(covered, page_size) :], page_size)


def pages_still_needed(request: RequestView, page_size: int) -> int:
    """Return how many pages an admitted request may still take: the last token is never stored."""
    return div_ceil(request.max_device_len - 1, page_size) - len(request.row_slots) // page_size


def _path(nodes: Mapping[int, NodeView], node_id: int) -> list[NodeView]:
    """Return the nodes from `node_id` up to the root; stops at a missing node or a loop."""
    path: list[NodeView] = []
    current: int | None = node_id
    while current is not None and current in nodes and len(path) <= len(nodes):
        path.append(nodes[current])
        current = nodes[current].parent
    return path


def _path_slots(nodes: Mapping[int, NodeView], handle: HandleView) -> tuple[int, ...]:
    return tuple(slot for node in reversed(_path(nodes, handle.node_id)) for slot in node.slots)


def _parents_first(nodes: Mapping[int, NodeView]) -> list[NodeView]:
    """Return the nodes that hang on the root, every parent before its children; the root is left out."""
    ordered: list[NodeView] = []
    seen = {ROOT}
    frontier = [ROOT]
    while frontier:
        node_id = frontier.pop()
        for _, child in nodes[node_id].children if node_id in nodes else ():
            if child in nodes and child not in seen:
                seen.add(child)
                ordered.append(nodes[child])
                frontier.append(child)
    return ordered
