"""The radix tree: which token prefixes are cached, in which slots, and which may be taken back.

A node holds a run of tokens and the slot of each; the path from the root spells the prefix. Only
whole pages are cached. A match inside a node splits it. A locked handle protects its node and
every node above it. What no handle protects is evictable, leaves first, the least recently used
leaf before others.

Nothing is counted along the way: ref counts, sizes and candidates are recomputed from the nodes
and the locked handles whenever they are asked for. Slots are returned, never given to a pool.
Chapter: spec/02-radix-tree.md, spec/03-locks-and-eviction.md
"""

from __future__ import annotations

from dataclasses import dataclass

from minisgl_spec import invariants
from minisgl_spec.errors import ContractError
from minisgl_spec.units import Slot, Slots, Token, Tokens, align_down
from minisgl_spec.views import ROOT, CacheView, HandleView, NodeView


class Node:
    """A run of cached tokens; the root holds none."""

    def __init__(self, node_id: int, parent: Node | None, key: Tokens, slots: Slots, last_used: int) -> None:
        self.node_id = node_id
        self.parent = parent
        self.key: tuple[Token, ...] = tuple(key)
        self.slots: tuple[Slot, ...] = tuple(slots)
        self.last_used = last_used

    def path(self) -> list[Node]:
        """Return the nodes from the root to this one."""
        nodes = [self]
        while nodes[-1].parent is not None:
            nodes.append(nodes[-1].parent)
        return nodes[::-1]

    def is_below(self, other: Node) -> bool:
        """Say whether this node is `other` or below it."""
        node: Node | None = self
        while node is not None and node is not other:
            node = node.parent
        return node is other


class Handle:
    """What a match or an insertion found: a node and the number of tokens on its path."""

    def __init__(self, node: Node, prefix_len: int) -> None:
        self.node = node
        self.prefix_len = prefix_len
        self.is_locked = False

    def slots(self) -> tuple[Slot, ...]:
        """Return the slots of the prefix in order of position: gathered upwards, told downwards."""
        return tuple(slot for node in self.node.path() for slot in node.slots)

    def view(self) -> HandleView:
        """Return a picture of the handle."""
        return HandleView(self.node.node_id, self.prefix_len, self.is_locked)


@dataclass(frozen=True, slots=True)
class InsertResult:
    """How much was cached before an insertion, and a handle on all of what is cached now."""

    prefix_len: int
    handle: Handle


class RadixTree:
    """A prefix cache that shares whole pages between token sequences."""

    def __init__(self, page_size: int) -> None:
        if page_size < 1:
            raise ContractError("RadixTree", "page_size >= 1", {"page_size": page_size})
        self.page_size = page_size
        self.tick = 0
        self.num_created = 1
        self.root = Node(ROOT, None, (), (), 0)
        self.nodes: list[Node] = [self.root]
        self.locked_handles: list[Handle] = []

    # -- what is there -----------------------------------------------------------------------

    def children(self, node: Node) -> list[Node]:
        """Return the children of `node`, oldest first."""
        return [child for child in self.nodes if child.parent is node]

    def ref_count(self, node: Node) -> int:
        """Return the number of locked handles at or below `node`."""
        return sum([handle.node.is_below(node) for handle in self.locked_handles])

    @property
    def evictable_size(self) -> int:
        """Slots that no locked handle protects."""
        return sum([len(node.slots) for node in self.nodes if self.ref_count(node) == 0])

    @property
    def protected_size(self) -> int:
        """Slots at or above a locked handle."""
        return sum([len(node.slots) for node in self.nodes if self.ref_count(node) > 0])

    # -- operations --------------------------------------------------------------------------

    def match_prefix(self, ids: Tokens) -> Handle:
        """Find the longest cached prefix of `ids`, in whole pages.

        Args:
            ids: [n] tokens from position 0; may be empty.

        Returns: a handle, not locked, of `prefix_len` <= n tokens.

        Mutates: splits at most one node; refreshes last_used of every node it touches, a node
                 that matches in part before it is split, so that both halves are as recent.
        Keeps:   match_is_longest, match_preserves_contents.
        Spec:    02-radix-tree.md#match
        """
        # FIND and CHANGE
        node, prefix_len = self._walk(tuple(ids))
        # RETURN
        return Handle(node, prefix_len)

    def insert_prefix(self, ids: Tokens, slots: Slots) -> InsertResult:
        """Cache the KV of a token prefix and say how much of it was cached already.

        Only whole pages enter the tree; the last `len(ids) % page_size` slots stay the caller's.
        What is cached already stays as it is: the first to insert wins.

        Args:
            ids:   [n] tokens of one sequence from position 0.
            slots: [n] the slot of each token; whole pages, page-aligned.

        Returns:
            prefix_len: tokens that were cached before; the caller still owns slots[:prefix_len].
            handle:     covers align_down(n, page_size) tokens; not locked.

        Mutates: splits at most one node, adds at most one leaf, refreshes last_used on the path.
        Keeps:   keys_page_aligned, siblings_differ_in_first_page, sizes_match_locks.
        Raises:  ContractError if len(ids) != len(slots).
        Spec:    02-radix-tree.md#insert
        """
        # CHECK
        if len(ids) != len(slots):
            raise ContractError(
                "insert_prefix", "one slot per token", {"tokens": len(ids), "slots": len(slots)}
            )
        # FIND
        new_len = align_down(len(ids), self.page_size)
        node, prefix_len = self._walk(tuple(ids[:new_len]))
        # CHANGE
        if prefix_len < new_len:
            node = self._add(node, ids[prefix_len:new_len], slots[prefix_len:new_len])
        # RETURN
        return InsertResult(prefix_len, Handle(node, new_len))

    def lock(self, handle: Handle) -> None:
        """Protect the handle's prefix from eviction until it is unlocked.

        Raises: ContractError if the handle is locked, or its node is no longer in the tree.
        Keeps:  ref_count_counts_handles, sizes_match_locks.
        Spec:   03-locks-and-eviction.md#lock
        """
        # CHECK
        if handle.is_locked:
            raise ContractError("lock", "a handle that is not locked", {"handle": handle.view()})
        if handle.node not in self.nodes:
            raise ContractError(
                "lock",
                "a handle whose node is in the tree",
                {"handle": handle.view()},
                "It was evicted: match again.",
            )
        # CHANGE
        handle.is_locked = True
        self.locked_handles.append(handle)

    def unlock(self, handle: Handle) -> None:
        """Take the protection of `lock` back.

        Raises: ContractError if the handle is not locked.
        Spec:   03-locks-and-eviction.md#lock
        """
        # CHECK
        if not handle.is_locked:
            raise ContractError("unlock", "a locked handle", {"handle": handle.view()})
        # CHANGE
        handle.is_locked = False
        self.locked_handles.remove(handle)

    def evict(self, size: int) -> tuple[Slot, ...]:
        """Remove at least `size` slots from the tree, whole leaves, least recently used first.

        A parent that lost its last child is a leaf from then on.

        Returns: the slots in order of eviction; the caller gives their pages back.
        Raises:  ContractError if size is negative or larger than evictable_size.
        Keeps:   evict_frees_enough, evict_takes_oldest_leaf, locked_nodes_in_tree.
        Spec:    03-locks-and-eviction.md#evict
        """
        # CHECK
        if not 0 <= size <= self.evictable_size:
            raise ContractError(
                "evict",
                "0 <= size <= evictable_size",
                {
                    "size": size,
                    "evictable_size": self.evictable_size,
                    "protected_size": self.protected_size,
                },
                "Unlock a handle or ask for less.",
            )
        evicted: list[Slot] = []
        while len(evicted) < size:
            # FIND
            victim = min(self.evictable_leaves(), key=lambda leaf: (leaf.last_used, leaf.node_id))
            # CHANGE
            self.nodes.remove(victim)
            evicted.extend(victim.slots)
        # RETURN
        return tuple(evicted)

    def reset(self) -> None:
        """Forget everything that is cached.

        Raises: ContractError while a handle is locked.
        """
        # CHECK
        if self.locked_handles:
            raise ContractError(
                "reset",
                "no locked handle",
                {"locked_handles": len(self.locked_handles), "protected_size": self.protected_size},
                "Let the requests finish or abort them.",
            )
        # CHANGE
        self.nodes = [self.root]

    def evictable_leaves(self) -> list[Node]:
        """Return the nodes that may be evicted now: no child, no lock, not the root."""
        return [
            node
            for node in self.nodes
            if node is not self.root and not self.children(node) and self.ref_count(node) == 0
        ]

    def view(self) -> CacheView:
        """Return a picture of the tree, nodes in order of creation."""
        return CacheView(
            page_size=self.page_size,
            nodes=tuple([self._node_view(node) for node in self.nodes]),
            locked_handles=tuple([handle.view() for handle in self.locked_handles]),
            evictable_size=self.evictable_size,
            protected_size=self.protected_size,
        )

    def check_integrity(self) -> None:
        """Raise `InvariantError` if a rule of structure or ownership is broken."""
        invariants.check(self.view())

    # -- private -----------------------------------------------------------------------------

    def _walk(self, ids: tuple[Token, ...]) -> tuple[Node, int]:
        """Follow `ids` down the tree; return the last node that matches and the tokens matched."""
        self.tick += 1
        node, prefix_len = self.root, 0
        while True:
            rest = ids[prefix_len:]
            matches = [(self._matched_len(child, rest), child) for child in self.children(node)]
            # Siblings differ in their first page, so at most one child matches a page or more.
            length, child = max(matches, key=lambda match: match[0], default=(0, node))
            if length == 0:
                return node, prefix_len
            child.last_used = self.tick
            prefix_len += length
            if length < len(child.key):
                return self._split(child, length), prefix_len
            node = child

    def _matched_len(self, node: Node, ids: tuple[Token, ...]) -> int:
        """Return how many tokens of `node` and `ids` agree, in whole pages."""
        length = 0
        while length < min(len(node.key), len(ids)) and node.key[length] == ids[length]:
            length += 1
        return align_down(length, self.page_size)

    def _split(self, node: Node, length: int) -> Node:
        """Give the first `length` tokens of `node` to a new node above it; return the new node.

        The node itself keeps the rest and its identity, so a handle on it still covers both halves.
        """
        upper = self._add(node.parent, node.key[:length], node.slots[:length])
        upper.last_used = node.last_used
        node.parent, node.key, node.slots = upper, node.key[length:], node.slots[length:]
        return upper

    def _add(self, parent: Node | None, key: Tokens, slots: Slots) -> Node:
        node = Node(self.num_created, parent, key, slots, self.tick)
        self.num_created += 1
        self.nodes.append(node)
        return node

    def _node_view(self, node: Node) -> NodeView:
        return NodeView(
            node_id=node.node_id,
            parent=node.parent.node_id if node.parent is not None else None,
            children=tuple(
                sorted([(child.key[: self.page_size], child.node_id) for child in self.children(node)])
            ),
            key=node.key,
            slots=node.slots,
            ref_count=self.ref_count(node),
            last_used=node.last_used,
        )
