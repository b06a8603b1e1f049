"""Claims about drawings: they print well, and never fail on a broken view.

Guide: spec/02-radix-tree.md
"""

from __future__ import annotations

import pytest

from minisgl_spec.draw import draw, draw_cache, draw_ranges
from minisgl_spec.views import ROOT, HandleView

from .oracle import cache_view, locked, node, scheduler, stepped, submitted, tree_with


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), "none"), ((3,), "3"), ((0, 1, 2, 6), "0-2,6"), ((2, 1, 0), "2,1,0"), ((4, 5, 0, 1), "4-5,0-1")],
)
def test_numbers_are_drawn_as_ranges_in_their_order(numbers: tuple[int, ...], text: str) -> None:
    """A run is two numbers or more, going up by one. (02-radix-tree.md#example)"""
    assert draw_ranges(numbers) == text


def test_a_tree_is_drawn_one_node_a_line() -> None:
    """Children are indented, in order of their first page. (02-radix-tree.md#example)"""
    tree = tree_with((1, 2, 3, 4), (0, 9))
    locked(tree, 1, 2, 9, 9)

    assert draw_cache(tree.view(), 4).splitlines() == [
        "root",
        "  [0 9] slots=4-5 ref_count=0",
        "  [1 2] slots=0-1 ref_count=1",
        "    [3 4] slots=2-3 ref_count=0",
        "free=4 evictable=4 protected=2",
    ]


def test_an_engine_is_drawn_with_requests_and_batches() -> None:
    """What is shared, private, in flight, free and retired. (07-overlap.md#example)"""
    engine = stepped(submitted(scheduler(overlap=True, num_rows=1), (1, (1, 2, 3), 3), (2, (7,), 1)))

    assert draw(engine.view()).splitlines() == [
        "root",
        "evictable=0 protected=0",
        "request 1 decode row=0 cached_len=3 device_len=4 of 6 slots=none shared, 0-3 private",
        "request 2 waiting, prompt of 1",
        "batch 1 in flight: request 1 row=0 positions 0:3 writes slots 0-2",
        "free pages 2-7; retired pages none; free rows none",
    ]


def test_a_node_that_hangs_on_nothing_is_drawn() -> None:
    """A broken state is shown, not hidden. (02-radix-tree.md#state)"""
    view = cache_view(node(ROOT, None), node(4, 3, (1, 2), (0, 1)), evictable=2)

    assert "not in the tree: [1 2] slots=0-1 ref_count=0" in draw_cache(view)


def test_a_handle_whose_node_is_gone_is_drawn() -> None:
    """A broken state is shown, not hidden. (03-locks-and-eviction.md#state)"""
    view = cache_view(node(ROOT, None), handles=[HandleView(5, 2, True)])

    assert "locked handle of 2 tokens on node 5, which is gone" in draw_cache(view)


def test_a_loop_of_nodes_is_drawn_once() -> None:
    """A drawing ends. (02-radix-tree.md#state)"""
    loop = cache_view(
        node(ROOT, None, children=[((1, 2), 1)]),
        node(1, ROOT, (1, 2), (0, 1), children=[((1, 2), 1)]),
    )

    assert draw_cache(loop).count("[1 2]") == 2


def test_anything_else_is_drawn_by_its_repr() -> None:
    """A drawing never fails. (02-radix-tree.md#state)"""
    assert draw("a note") == "'a note'"
