"""Claims about invariants: each sees the state that breaks it, and none complains of a right one.

The broken states are made by hand from the view of a healthy engine.
Guide: spec/invariants.md
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minisgl_spec.errors import InvariantError, Violation
from minisgl_spec.invariants import (
    CONTENT,
    INVARIANTS,
    OWNERSHIP,
    STRUCTURE,
    ContentView,
    check,
    violations,
)
from minisgl_spec.shadow import ShadowMemory
from minisgl_spec.views import CacheView, EngineView, HandleView, NodeView, RequestView

from .oracle import scheduler, stepped, submitted


def healthy() -> EngineView:
    """Nodes 1 [1 2] and 2 [3 4] below it, locked by request 1 in flight; request 2 waits."""
    engine = stepped(submitted(scheduler(overlap=True, num_rows=1), (1, (1, 2), 1)), 2)
    engine = stepped(submitted(engine, (1, (1, 2, 3, 4, 5), 4), (2, (7,), 1)), 2)
    engine.cache.tree.match_prefix((1, 2, 9, 9))
    return engine.view()


def with_node(view: EngineView, node_id: int, **changes: object) -> EngineView:
    nodes = tuple(n._replace(**changes) if n.node_id == node_id else n for n in view.cache.nodes)  # type: ignore[arg-type]
    return view._replace(cache=view.cache._replace(nodes=nodes))


def with_request(view: EngineView, **changes: object) -> EngineView:
    return view._replace(requests=(view.requests[0]._replace(**changes), *view.requests[1:]))  # type: ignore[arg-type]


def with_batch(view: EngineView, **changes: object) -> EngineView:
    return view._replace(in_flight=(view.in_flight[0]._replace(**changes),))  # type: ignore[arg-type]


def with_cache(view: EngineView, **changes: object) -> EngineView:
    return view._replace(cache=view.cache._replace(**changes))  # type: ignore[arg-type]


def broken(view: EngineView) -> set[str]:
    return {violation.rule for violation in violations(view)}


BROKEN: dict[str, Callable[[EngineView], EngineView]] = {
    "keys_page_aligned": lambda view: with_node(view, 2, key=(3,)),
    "slots_are_whole_pages": lambda view: with_node(view, 2, slots=(5, 4)),
    "siblings_differ_in_first_page": lambda view: with_cache(
        view, nodes=(*view.cache.nodes, NodeView(9, 0, (), (1, 2), (14, 15), 0, 0))
    ),
    "parents_and_children_agree": lambda view: with_node(view, 1, children=()),
    "ref_count_counts_handles": lambda view: with_node(view, 2, ref_count=0),
    "locked_nodes_in_tree": lambda view: with_cache(view, locked_handles=(HandleView(7, 4, True),)),
    "sizes_match_locks": lambda view: with_cache(view, evictable_size=2),
    "slots_cached_once": lambda view: with_node(view, 2, slots=(0, 1)),
    "pages_partitioned": lambda view: view._replace(free_pages=(*view.free_pages, 0)),
    "rows_partitioned": lambda view: view._replace(free_rows=(0,)),
    "in_flight_requests_are_held": lambda view: with_batch(view, uid=2),
    "lengths_ordered": lambda view: with_request(view, device_len=view.requests[0].cached_len),
    "rows_are_wide_enough": lambda view: view._replace(row_width=5),
    "handle_is_locked": lambda view: with_request(view, handle=None),
    "page_table_follows_handle": lambda view: with_request(
        view, row_slots=(6, 7, *view.requests[0].row_slots[2:])
    ),
    "page_table_reads_live_pages": lambda view: view._replace(
        free_pages=(*view.free_pages, view.requests[0].row_slots[4] // 2)
    ),
    "writes_are_private": lambda view: with_batch(view, out_loc=(0,)),
    "admitted_requests_fit": lambda view: view._replace(free_pages=()),
    "mapped_pages_cover_lengths": lambda view: with_request(view, row_slots=view.requests[0].row_slots[:4]),
}


def test_a_healthy_engine_breaks_no_rule() -> None:
    """No false alarm. (spec/invariants.md)"""
    check(healthy())


@pytest.mark.parametrize("name", BROKEN)
def test_an_invariant_sees_the_state_that_breaks_it(name: str) -> None:
    """Each rule fires by its own name. (spec/invariants.md)"""
    assert name in broken(BROKEN[name](healthy()))


def test_every_invariant_has_a_state_that_breaks_it() -> None:
    """A rule that never fires is worse than none. (spec/invariants.md)"""
    assert {rule.name for rule in INVARIANTS.values() if rule.judge != CONTENT} == set(BROKEN)


def test_judges_can_be_switched_off() -> None:
    """A page that is owned twice is the ownership judge's to see. (spec/invariants.md)"""
    view = BROKEN["pages_partitioned"](healthy())

    assert violations(view, {STRUCTURE}) == ()
    assert "pages_partitioned" in {violation.rule for violation in violations(view, {OWNERSHIP})}


def test_a_retired_page_is_owned_by_nobody_else() -> None:
    """Retired is one of the four owners. (07-overlap.md#retired)"""
    view = healthy()
    retired = view._replace(free_pages=view.free_pages[1:], retired_pages=view.free_pages[:1])

    assert violations(retired) == ()


def test_every_violation_is_told_at_once() -> None:
    """One line each, with the name of the rule. (spec/invariants.md)"""
    view = healthy()._replace(row_width=7, free_rows=(0,))

    with pytest.raises(InvariantError) as found:
        check(view)

    assert [line.split(":")[0] for line in str(found.value).splitlines()] == [
        "rows_partitioned",
        "rows_are_wide_enough",
    ]


def content(shadow: ShadowMemory, written_len: int = 2) -> ContentView:
    """Node [1 2] in slots 0-1; request 7 has written its first tokens to slots 4 and 5."""
    root = NodeView(0, None, (((1, 2), 1),), (), (), 0, 0)
    node = NodeView(1, 0, (), (1, 2), (0, 1), 0, 1)
    cache = CacheView(2, (root, node), (), 2, 0)
    request = RequestView(7, "prefill", (3, 4, 5), 3, 2, 3, 4, written_len, 0, (4, 5), None, 0)
    return ContentView(cache, (request,), shadow)


def shadow_with(*written: tuple[int, tuple[int, ...]]) -> ShadowMemory:
    shadow = ShadowMemory()
    for slot, ids in written:
        shadow.write(slot, shadow.prefix(ids))
    return shadow


RIGHT = ((0, (1,)), (1, (1, 2)), (4, (3,)), (5, (3, 4)))


def test_slots_that_hold_their_tokens_are_right() -> None:
    """Every cached and every written slot holds its own prefix. (08-numerics.md#shadow-memory)"""
    check(content(shadow_with(*RIGHT)))


def test_a_cached_slot_that_holds_something_else_is_found() -> None:
    """The fact names node, slot, found and expected. (08-numerics.md#shadow-memory)"""
    view = content(shadow_with(*RIGHT, (1, (9, 2))))

    assert violations(view) == (
        Violation("slots_hold_their_tokens", "node 1: slot 1 holds the KV of (9, 2), expected (1, 2)"),
    )


def test_a_slot_of_a_request_that_was_never_written_is_found() -> None:
    """Below written_len every slot counts. (08-numerics.md#shadow-memory)"""
    view = content(shadow_with(*RIGHT[:3]))

    assert violations(view) == (
        Violation("slots_hold_their_tokens", "request 7: slot 5 was never written, expected (3, 4)"),
    )


def test_what_no_processed_batch_wrote_is_not_judged() -> None:
    """Positions from written_len on are still being written. (07-overlap.md#loop)"""
    assert violations(content(shadow_with(*RIGHT[:3]), written_len=1)) == ()


def test_the_content_judge_can_be_switched_off() -> None:
    """Then nobody looks into slots. (spec/invariants.md)"""
    assert violations(content(ShadowMemory()), {STRUCTURE, OWNERSHIP}) == ()
