"""The engine's radix tree agrees with the oracle's, whole views compared after every operation.

The engine finds a child by the bytes of a page, keeps counters and an eviction queue; the oracle
recomputes everything. One program runs on both: node numbers, ticks, pages, ref counts and sizes
must be equal, and so must the order of eviction.
Guide: tests/README.md
"""

from __future__ import annotations

from array import array

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minisgl_ref.kvcache.base import Handle
from minisgl_ref.kvcache.radix_cache import RadixCache
from minisgl_spec import invariants
from minisgl_spec.errors import ContractError
from minisgl_spec.radix_tree import Handle as OracleHandle
from minisgl_spec.radix_tree import RadixTree
from minisgl_spec.units import div_ceil, pages_to_slots

PAGE_SIZES = (1, 2, 3, 4, 16)


def key_of(ids: tuple[int, ...]) -> bytes:
    return array("i", ids).tobytes()


class TreesAgree(RuleBasedStateMachine):
    """One program of cache operations on both trees."""

    @initialize(page_size=st.sampled_from(PAGE_SIZES))
    def start(self, page_size: int) -> None:
        self.page_size = page_size
        self.engine = RadixCache(page_size)
        self.oracle = RadixTree(page_size)
        self.handles: list[tuple[Handle, OracleHandle]] = []
        self.next_page = 0

    def _ids(self, data: st.DataObject) -> tuple[int, ...]:
        """Three pages of one token value each, fewer or more, so that prefixes are shared; then a tail."""
        pages = data.draw(st.lists(st.integers(0, 1), min_size=3, max_size=3), label="pages")
        pages += data.draw(st.lists(st.integers(0, 1), max_size=2), label="more pages")
        num_pages = data.draw(st.integers(0, len(pages)).map(lambda cut: len(pages) - cut), label="num_pages")
        tail = data.draw(st.lists(st.integers(0, 1), max_size=self.page_size), label="tail")
        return tuple(token for page in pages[:num_pages] for token in [page] * self.page_size) + tuple(tail)

    def _keep(self, ours: Handle, theirs: OracleHandle) -> None:
        assert ours.view() == theirs.view()
        assert pages_to_slots(ours.pages(), self.page_size) == theirs.slots()
        self.handles.append((ours, theirs))

    @rule(data=st.data())
    def match(self, data: st.DataObject) -> None:
        ids = self._ids(data)
        self._keep(self.engine.match_prefix(key_of(ids)), self.oracle.match_prefix(ids))

    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        ids = self._ids(data)
        num_pages = div_ceil(len(ids), self.page_size)
        pages = list(range(self.next_page, self.next_page + num_pages))
        self.next_page += num_pages
        slots = pages_to_slots(pages, self.page_size)[: len(ids)]
        ours, theirs = self.engine.insert_prefix(key_of(ids), pages), self.oracle.insert_prefix(ids, slots)
        assert ours.prefix_len == theirs.prefix_len
        self._keep(ours.handle, theirs.handle)

    @rule(data=st.data())
    def match_and_lock(self, data: st.DataObject) -> None:
        """What every request begins with."""
        self.match(data)
        ours, theirs = self.handles[-1]
        self.engine.lock(ours)
        self.oracle.lock(theirs)

    @precondition(lambda self: self.oracle.locked_handles)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        locked = [pair for pair in self.handles if pair[0].is_locked]
        ours, theirs = data.draw(st.sampled_from(locked), label="handle")
        self.engine.unlock(ours)
        self.oracle.unlock(theirs)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), operation=st.sampled_from(["lock", "unlock"]))
    def lock_or_unlock_any(self, data: st.DataObject, operation: str) -> None:
        """Whether it is locked or not, in the tree or gone: both trees accept it, or both refuse."""
        ours, theirs = data.draw(st.sampled_from(self.handles[-4:]), label="handle")
        self._both(
            lambda: getattr(self.engine, operation)(ours), lambda: getattr(self.oracle, operation)(theirs)
        )

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        size = data.draw(st.integers(-1, self.oracle.evictable_size + 1), label="size")
        ours, theirs = self._both(lambda: self.engine.evict(size), lambda: self.oracle.evict(size))
        assert pages_to_slots(ours or (), self.page_size) == (theirs or ())

    @precondition(lambda self: len(self.oracle.nodes) > 5)
    @rule()
    def reset(self) -> None:
        self._both(self.engine.reset, self.oracle.reset)

    @invariant()
    def views_are_equal(self) -> None:
        assert self.engine.view() == self.oracle.view()
        invariants.check(self.engine.view())

    @invariant()
    def queue_is_the_recomputed_order(self) -> None:
        theirs = sorted(self.oracle.evictable_leaves(), key=lambda leaf: (leaf.last_used, leaf.node_id))
        assert [node.node_id for node in self.engine.evictable_leaves()] == [leaf.node_id for leaf in theirs]

    def _both(self, ours, theirs):
        """Both answers; None for each if both refuse, which must change nothing."""
        before = self.engine.view()
        try:
            expected = theirs()
        except ContractError:
            with pytest.raises(ContractError):
                ours()
            assert self.engine.view() == before
            return None, None
        return ours(), expected


TestTreesAgree = TreesAgree.TestCase
