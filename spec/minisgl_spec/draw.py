"""Drawings: a cache, an engine or a page map as text that a person can read in a report.

    root
      [1 2] slots=0-1 ref_count=1
        [3 4] slots=2-3 ref_count=1
    free=2 evictable=0 protected=4

A drawing is made of a view and never fails on a broken one.
Chapter: spec/02-radix-tree.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minisgl_spec.views import ROOT, CacheView, EngineView, NodeView, RequestView


def draw_ranges(numbers: Sequence[int]) -> str:
    """Return slots or pages as ranges in their order: (0, 1, 2, 6) becomes 0-2,6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"


def draw_cache(view: CacheView, num_free: int | None = None) -> str:
    """Return the tree, one node a line, children in order of their first page, and the sizes."""
    nodes = {node.node_id: node for node in view.nodes}
    lines = ["root", *_draw_children(nodes, ROOT, 1, set())]
    reachable = _reachable(nodes)
    lines += [f"not in the tree: {_draw_node(nodes[n])}" for n in sorted(set(nodes) - reachable)]
    lines += [
        f"locked handle of {handle.prefix_len} tokens on node {handle.node_id}, which is gone"
        for handle in view.locked_handles
        if handle.node_id not in nodes
    ]
    free = "" if num_free is None else f"free={num_free} "
    lines.append(f"{free}evictable={view.evictable_size} protected={view.protected_size}")
    return "\n".join(lines)


def draw_engine(view: EngineView) -> str:
    """Return the tree, the requests with their rows, the batches in flight and the free lists."""
    lines = [draw_cache(view.cache)]
    lines += [_draw_request(request) for request in view.requests]
    lines += [
        f"batch {entry.batch} in flight: request {entry.uid} row={entry.row} "
        f"positions {entry.cached_len}:{entry.device_len} writes slots {draw_ranges(entry.out_loc)}"
        for entry in view.in_flight
    ]
    lines.append(
        f"free pages {draw_ranges(view.free_pages)}; retired pages {draw_ranges(view.retired_pages)}; "
        f"free rows {draw_ranges(view.free_rows)}"
    )
    return "\n".join(lines)


def draw(view: object) -> str:
    """Return the drawing of a cache's or an engine's view."""
    if isinstance(view, EngineView):
        return draw_engine(view)
    return draw_cache(view) if isinstance(view, CacheView) else repr(view)


def _draw_request(request: RequestView) -> str:
    if request.row is None:
        return f"request {request.uid} waiting, prompt of {request.prompt_len}"
    covered = request.handle.prefix_len if request.handle is not None else 0
    return (
        f"request {request.uid} {request.phase} row={request.row} cached_len={request.cached_len} "
        f"device_len={request.device_len} of {request.max_device_len} "
        f"slots={draw_ranges(request.row_slots[:covered])} shared, "
        f"{draw_ranges(request.row_slots[covered:])} private"
    )


def _draw_node(node: NodeView) -> str:
    key = " ".join(map(str, node.key))
    return f"[{key}] slots={draw_ranges(node.slots)} ref_count={node.ref_count}"


def _draw_children(nodes: dict[int, NodeView], parent: int, depth: int, seen: set[int]) -> Iterable[str]:
    if parent not in nodes or parent in seen:
        return
    seen.add(parent)
    for _, child in nodes[parent].children:
        if child in nodes:
            yield "  " * depth + _draw_node(nodes[child])
            yield from _draw_children(nodes, child, depth + 1, seen)


def _reachable(nodes: dict[int, NodeView]) -> set[int]:
    found, frontier = set[int](), [ROOT]
    while frontier:
        node_id = frontier.pop()
        if node_id in nodes and node_id not in found:
            found.add(node_id)
            frontier += [child for _, child in nodes[node_id].children]
    return found
