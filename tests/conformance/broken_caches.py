"""Deliberately wrong trees, and trees that differ from the oracle and are right all the same.

Each wrong one is a change of a few lines to the oracle's tree, named after the mistake.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Callable

from minisgl_conformance.adapters.oracle import OracleCache
from minisgl_conformance.targets import REFUSALS, RESET, VIEW
from minisgl_spec.errors import ContractError
from minisgl_spec.radix_tree import Handle, InsertResult, Node, RadixTree
from minisgl_spec.trace import Json
from minisgl_spec.units import Slots, Tokens
from minisgl_spec.views import HandleView


class CacheOf(OracleCache):
    """A target around any tree; it claims its view, not the oracle's decisions."""

    capabilities = frozenset((VIEW, RESET, REFUSALS))

    def __init__(self, tree: type[RadixTree], config: Json) -> None:
        self.tree_type = tree
        super().__init__(config)

    def make_tree(self, config: Json) -> RadixTree:
        """Build the tree under test; without a cache there is nothing to test."""
        return (
            super().make_tree(config) if config["cache"] == "naive" else self.tree_type(config["page_size"])
        )


class BlindCacheOf(CacheOf):
    """The same, seen from outside only."""

    capabilities = frozenset((RESET, REFUSALS))


def target_of(tree: type[RadixTree], target: type[CacheOf] = CacheOf) -> Callable[[Json], CacheOf]:
    """Return what makes a target around a tree."""
    return lambda config: target(tree, config)


# -- wrong -------------------------------------------------------------------------------------


class SplitLosesLock(RadixTree):
    """A split leaves the upper half unprotected."""

    def _split(self, node: Node, length: int) -> Node:
        upper = super()._split(node, length)
        self.unprotected = getattr(self, "unprotected", set()) | {upper}
        return upper

    def ref_count(self, node: Node) -> int:
        """Count handles, but not for the upper half of a split."""
        return 0 if node in getattr(self, "unprotected", set()) else super().ref_count(node)


class EvictsLocked(RadixTree):
    """Eviction looks at leaves only, locked or not."""

    def evictable_leaves(self) -> list[Node]:
        """Return every leaf."""
        return [node for node in self.nodes if node is not self.root and not self.children(node)]


class MatchStopsAtSplit(RadixTree):
    """A node that matches in part is not split, and its part is not returned."""

    def match_prefix(self, ids: Tokens) -> Handle:
        """Find whole nodes only."""
        node, prefix_len = self.root, 0
        while True:
            rest = tuple(ids[prefix_len:])
            whole = [child for child in self.children(node) if rest[: len(child.key)] == child.key]
            if not whole:
                return Handle(node, prefix_len)
            node = whole[0]
            prefix_len += len(node.key)


class CountsPagesAsSlots(RadixTree):
    """evictable_size is recorded in pages."""

    @property
    def evictable_size(self) -> int:
        """Return the number of pages, where slots are meant."""
        return super().evictable_size // self.page_size


class SlotsUpwards(RadixTree):
    """A handle's slots are gathered from the node upwards, and never reversed."""

    def match_prefix(self, ids: Tokens) -> Handle:
        """Return a handle that lists its path from the end."""
        found = super().match_prefix(ids)
        return _UpwardHandle(found.node, found.prefix_len)


class _UpwardHandle(Handle):
    def slots(self) -> tuple[int, ...]:
        return tuple(slot for node in reversed(self.node.path()) for slot in node.slots)


class InsertOverwrites(RadixTree):
    """The last to insert wins: what is cached gets the new slots."""

    def insert_prefix(self, ids: Tokens, slots: Slots) -> InsertResult:
        """Cache, and point every node of the path at the new slots."""
        result = super().insert_prefix(ids, slots)
        start = 0
        for node in result.handle.node.path():
            node.slots = tuple(slots[start : start + len(node.slots)])
            start += len(node.slots)
        return result


class InsertKeepsTail(RadixTree):
    """The tail that is shorter than a page is cached too."""

    def insert_prefix(self, ids: Tokens, slots: Slots) -> InsertResult:
        """Cache everything."""
        node, prefix_len = self._walk(tuple(ids))
        if prefix_len < len(ids):
            node = self._add(node, ids[prefix_len:], slots[prefix_len:])
        return InsertResult(prefix_len, Handle(node, len(ids)))


class EvictsOneLeafTooFew(RadixTree):
    """Eviction counts what it is asked for in leaves."""

    def evict(self, size: int) -> tuple[int, ...]:
        """Evict one leaf."""
        if not 0 <= size <= self.evictable_size:
            raise ContractError("evict", "0 <= size <= evictable_size", {"size": size})
        return super().evict(min(size, 1))


class EvictsParentsFirst(RadixTree):
    """Any node that is not locked may go, also one with children."""

    def evictable_leaves(self) -> list[Node]:
        """Return the oldest node that is not locked; its children stay."""
        free = [node for node in self.nodes if node is not self.root and self.ref_count(node) == 0]
        return free[:1]


class InsertReturnsTheParent(RadixTree):
    """The handle of an insertion covers what was cached before, not what it cached."""

    def insert_prefix(self, ids: Tokens, slots: Slots) -> InsertResult:
        """Return a handle on the node above the new one."""
        result = super().insert_prefix(ids, slots)
        node = result.handle.node
        above = (
            node.parent if node.parent is not None and result.prefix_len < result.handle.prefix_len else node
        )
        return InsertResult(result.prefix_len, Handle(above, result.prefix_len))


class UnlockTwice(RadixTree):
    """An unlock of a handle that is not locked does nothing, quietly."""

    def unlock(self, handle: Handle) -> None:
        """Unlock, if there is anything to unlock."""
        if handle.is_locked:
            super().unlock(handle)


class NeverUnlocks(RadixTree):
    """What was locked once stays protected."""

    def unlock(self, handle: Handle) -> None:
        """Unlock, and keep a lock of one's own."""
        super().unlock(handle)
        self.lock(Handle(handle.node, handle.prefix_len))


WRONG: dict[type[RadixTree], str] = {
    SplitLosesLock: "ref_count_counts_handles",
    EvictsLocked: "evict_frees_enough",
    MatchStopsAtSplit: "match_is_longest",
    CountsPagesAsSlots: "sizes_match_locks",
    SlotsUpwards: "match_returns_cached_slots",
    InsertOverwrites: "pages_partitioned",
    InsertKeepsTail: "keys_page_aligned",
    EvictsOneLeafTooFew: "evict_frees_enough",
    EvictsParentsFirst: "evict_leaves_first",
    InsertReturnsTheParent: "sizes_add_up",
    NeverUnlocks: "sizes_add_up",
    UnlockTwice: "mistakes_are_refused",
}
"""Each wrong tree, and the rule that has to be named."""


# -- different, and right ----------------------------------------------------------------------


class SplitsPerPage(RadixTree):
    """Every node is one page long: splits are eager."""

    def _add(self, parent: Node | None, key: Tokens, slots: Slots) -> Node:
        node = parent
        for start in range(0, len(key), self.page_size):
            end = start + self.page_size
            node = super()._add(node, key[start:end], slots[start:end])
        assert node is not None
        return node


class EvictsMore(RadixTree):
    """Eviction takes a leaf more than it is asked for, if there is one."""

    def evict(self, size: int) -> tuple[int, ...]:
        """Evict more than asked for."""
        slots = super().evict(size)
        return slots + super().evict(min(1, self.evictable_size))


class EvictsNewest(RadixTree):
    """The victim is a legal one, but another: the most recently used leaf."""

    def evictable_leaves(self) -> list[Node]:
        """Return the newest leaf alone."""
        leaves = super().evictable_leaves()
        return [max(leaves, key=lambda leaf: (leaf.last_used, leaf.node_id))] if leaves else []


class KeepsHandlesByPrefix(RadixTree):
    """A handle is as good as the prefix it names: one that was evicted and cached again can be locked."""

    def lock(self, handle: Handle) -> None:
        """Lock the node that holds the handle's prefix now."""
        gone = not handle.is_locked and handle.node not in self.nodes
        same = [node for node in self.nodes if gone and _prefix(node) == _prefix(handle.node)]
        if same:
            handle.node = same[0]
        super().lock(handle)


class SplitsLate(RadixTree):
    """A match splits nothing: the lock of a handle that ends inside a node protects all of it."""

    def match_prefix(self, ids: Tokens) -> Handle:
        """Follow whole nodes, and return a handle on the last one, matched in part or not."""
        self.tick += 1
        node, prefix_len = self.root, 0
        while True:
            rest = tuple(ids[prefix_len:])
            matches = [(self._matched_len(child, rest), child) for child in self.children(node)]
            length, child = max(matches, key=lambda match: match[0], default=(0, node))
            if length == 0:
                return _LateHandle(node, prefix_len)
            child.last_used = self.tick
            prefix_len += length
            if length < len(child.key):
                return _LateHandle(child, prefix_len)
            node = child


class _LateHandle(Handle):
    def slots(self) -> tuple[int, ...]:
        return super().slots()[: self.prefix_len]

    def view(self) -> HandleView:
        return HandleView(self.node.node_id, len(_prefix(self.node)), self.is_locked)


def _prefix(node: Node) -> tuple[int, ...]:
    return tuple(token for above in node.path() for token in above.key)


RIGHT: tuple[type[RadixTree], ...] = (
    RadixTree,
    SplitsPerPage,
    EvictsMore,
    EvictsNewest,
    KeepsHandlesByPrefix,
    SplitsLate,
)
"""Trees that no judge may complain about."""
