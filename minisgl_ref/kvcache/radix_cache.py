"""The radix tree of cached prefixes: found by the bytes of a page, evicted without a walk.

Two prefixes share nodes as far as they share whole pages. A match or an insertion that ends inside a
node splits it for good: the upper half is a new node, the lower keeps its identity, so handles stay
valid. An operation refreshes last_used on every node it touches, a partly matched one before its
split. Nodes of equal last_used lie on one path, but for the two leaves an insertion leaves behind a
split; there the older node goes first. Eviction takes whole leaves, least recently used first.

This file never touches the page pool: it returns pages, `scheduler/cache.py` gives them back.
Chapter: spec/02-radix-tree.md, spec/03-locks-and-eviction.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace

from minisgl_ref.kvcache.base import TOKEN_BYTES, Handle, InsertResult, Node, PrefixCache, view_of
from minisgl_spec.units import div_ceil
from minisgl_spec.views import CacheView

ID_BITS = 40  # bits of a queue entry that hold the node_id; last_used is above them
ID_MASK = (1 << ID_BITS) - 1


def common_tokens(a: bytes, b: bytes) -> int:
    """Return how many leading tokens two keys share; `minisgl_kernels.compare_key` may stand in for it."""
    length = min(len(a), len(b))
    differing = int.from_bytes(a[:length], "little") ^ int.from_bytes(b[:length], "little")
    if not differing:
        return length // TOKEN_BYTES
    lowest_bit = (differing & -differing).bit_length() - 1
    return lowest_bit // (8 * TOKEN_BYTES)


class RadixCache(PrefixCache):
    """A prefix cache that shares every common whole page.

    Evictable leaves wait in a heap ordered by (last_used, node_id); an entry is one int, which compares
    faster than a tuple and keeps a large heap close in memory. A node has at most one entry, and the
    entry's last_used is at most the node's own: an entry that lags behind a touch is put back with the
    newer tick when it comes up, one whose node is locked or no leaf is dropped and comes again when the
    node becomes an evictable leaf. So each visit of an eviction takes a leaf, or is paid for by one
    earlier touch, lock or insertion.
    """

    def __init__(self, page_size: int, compare: Callable[[bytes, bytes], int] = common_tokens) -> None:
        super().__init__(page_size)
        self._compare = compare
        self._tick = 0
        self._next_node_id = 1
        self._queue: list[int] = []
        self._queued: dict[int, Node] = {}

    def match_prefix(self, key: bytes) -> Handle:
        """Return a handle of the longest cached prefix of `key` in whole pages; not locked.

        Mutates: splits at most one node, refreshes last_used on the path.
        Keeps:   match_is_longest, match_preserves_contents.
        Raises:  ContractError if the key is not whole tokens.
        Spec:    02-radix-tree.md#match
        """
        self._check_key("match_prefix", key)
        node, length = self._descend(key)
        return Handle(self, node, length // TOKEN_BYTES)

    def insert_prefix(self, key: bytes, pages: Sequence[int]) -> InsertResult:
        """Cache the whole pages of `key` and say how much of it was cached already.

        Args:
            key:    tokens of one sequence from position 0.
            pages:  [n] the page of each `page_size` tokens; may be longer than the whole pages of the key.

        Returns:
            prefix_len: tokens that were cached already; the caller still owns their pages.
            handle:     covers the whole pages of the key; not locked.

        Mutates: splits at most one node, adds at most one leaf, refreshes last_used on the path.
        Keeps:   keys_page_aligned, siblings_differ_in_first_page, sizes_match_locks.
        Raises:  ContractError if the key is not whole tokens or the pages do not cover it.
        Spec:    02-radix-tree.md#insert
        """
        num_pages = self._check_insert(key, pages)
        page_size = self.page_size
        end = num_pages * self._page_bytes
        node, start = self._descend(key)
        if start < end:
            first_page = start // self._page_bytes
            leaf = Node(
                node, key[start:end], list(pages[first_page:num_pages]), self._tick, self._next_node_id
            )
            self._next_node_id += 1
            node.children[key[start : start + self._page_bytes]] = leaf
            self.evictable_size += (num_pages - first_page) * page_size
            self._enqueue(leaf)
            node = leaf
        return InsertResult(start // TOKEN_BYTES, Handle(self, node, num_pages * page_size))

    def lock(self, handle: Handle) -> None:
        """Protect the path of a handle from eviction.

        Mutates: handle.is_locked, ref_count on the path and the root, the two sizes.
        Keeps:   ref_count_counts_handles, sizes_match_locks, locked_nodes_in_tree.
        Raises:  ContractError if the handle is locked, not ours, or its node is gone.
        Spec:    03-locks-and-eviction.md#lock
        """
        node: Node | None = handle.node
        if handle.is_locked or handle.cache is not self or not handle.node.in_tree:
            self._refuse_lock(handle)
        handle.is_locked = True
        self._locked[handle] = None
        num_pages = 0
        while node is not None:
            if not node.ref_count:
                num_pages += len(node.pages)
            node.ref_count += 1
            node = node.parent
        self.evictable_size -= num_pages * self.page_size
        self.protected_size += num_pages * self.page_size

    def unlock(self, handle: Handle) -> None:
        """Take back the protection a lock gave.

        Mutates: handle.is_locked, ref_count on the path and the root, the two sizes.
        Keeps:   ref_count_counts_handles, sizes_match_locks.
        Raises:  ContractError if the handle is not locked, or not ours.
        Spec:    03-locks-and-eviction.md#unlock
        """
        if not handle.is_locked or handle.cache is not self:
            self._refuse_unlock(handle)
        handle.is_locked = False
        del self._locked[handle]
        num_pages = 0
        node = handle.node
        while (parent := node.parent) is not None:
            node.ref_count -= 1
            if not node.ref_count:
                num_pages += len(node.pages)
                if not node.children and node.node_id not in self._queued:
                    self._enqueue(node)
            node = parent
        node.ref_count -= 1  # the root: counted like any node, never evictable
        self.evictable_size += num_pages * self.page_size
        self.protected_size -= num_pages * self.page_size

    def evict(self, size: int) -> list[int]:
        """Forget at least `size` slots, leaf by leaf, and return their pages.

        Returns:
            pages: in eviction order, those of one leaf in order of position.

        Mutates: removes leaves; their handles have no pages any more.
        Keeps:   evict_frees_enough, evict_takes_oldest_leaf, sizes_match_locks.
        Raises:  ContractError if size is negative or above evictable_size.
        Spec:    03-locks-and-eviction.md#evict
        """
        if not 0 <= size <= self.evictable_size:
            self._refuse_evict(size)
        num_pages = div_ceil(size, self.page_size)
        queue, queued = self._queue, self._queued
        pages: list[int] = []
        while len(pages) < num_pages:
            entry = queue[0]
            node = queued[entry & ID_MASK]
            self.nodes_visited += 1
            if node.ref_count or node.children:
                heappop(queue)
                del queued[node.node_id]
            elif entry >> ID_BITS != node.last_used:
                heapreplace(queue, node.last_used << ID_BITS | node.node_id)
            else:
                heappop(queue)
                del queued[node.node_id]
                pages += node.pages
                self._remove_leaf(node)
        self.evictable_size -= len(pages) * self.page_size
        return pages

    def reset(self) -> list[int]:
        """Forget everything and return the pages; handles from before have none any more.

        Mutates: the whole tree; the count of ticks goes on.
        Raises:  ContractError while a handle is locked.
        Spec:    03-locks-and-eviction.md#reset
        """
        self._check_reset()
        nodes = self._nodes()
        for node in nodes:
            node.in_tree = node is self._root
            node.children = {}
        self._queue.clear()
        self._queued.clear()
        self.evictable_size = 0
        return [page for node in nodes for page in node.pages]

    def evictable_leaves(self) -> list[Node]:
        """Return the leaves that may be evicted now, the next victim first, as the queue has them.

        Mutates: nothing.
        """
        leaves = [node for node in self._queued.values() if not node.ref_count and not node.children]
        return sorted(leaves, key=lambda node: (node.last_used, node.node_id))

    def view(self) -> CacheView:
        """Describe the tree in plain values, nodes in order of creation.

        Mutates: nothing.
        """
        return view_of(self, sorted(self._nodes(), key=lambda node: node.node_id))

    def _descend(self, key: bytes) -> tuple[Node, int]:
        """Return the node where the longest cached prefix of whole pages ends, and its length in bytes.

        Mutates: takes one tick, refreshes last_used on the path, splits a node that ends later.
        """
        self._tick = tick = self._tick + 1
        page_bytes = self._page_bytes
        node = self._root
        start = 0
        # [0, start)  found: the bytes of the path to `node`
        while child := node.children.get(key[start : start + page_bytes]):
            child.last_used = tick
            node = child
            if key.startswith(node.key, start):
                start += len(node.key)
                continue
            num_pages = self._compare(node.key, key[start : start + len(node.key)]) // self.page_size
            return self._split(node, num_pages), start + num_pages * page_bytes
        return node, start

    def _split(self, lower: Node, num_pages: int) -> Node:
        """Put the first `num_pages` pages of a node into a new node above it, and return that."""
        parent = lower.parent
        assert parent is not None, "the root has no key to split"
        cut = num_pages * self._page_bytes
        first = lower.key[: self._page_bytes]
        upper = Node(
            parent,
            lower.key[:cut],
            lower.pages[:num_pages],
            lower.last_used,
            self._next_node_id,
            lower.ref_count,
        )
        self._next_node_id += 1
        parent.children[first] = upper
        lower.parent = upper
        lower.key = lower.key[cut:]
        lower.pages = lower.pages[num_pages:]
        upper.children[lower.key[: self._page_bytes]] = lower
        return upper

    def _remove_leaf(self, leaf: Node) -> None:
        """Take a leaf out of the tree; its parent may become the next evictable leaf."""
        parent = leaf.parent
        assert parent is not None, "the root is never queued"
        del parent.children[leaf.key[: self._page_bytes]]
        leaf.parent = None
        leaf.in_tree = False
        if (
            not parent.children
            and not parent.ref_count
            and parent.node_id not in self._queued
            and parent.parent is not None
        ):
            self._enqueue(parent)

    def _enqueue(self, node: Node) -> None:
        self._queued[node.node_id] = node
        heappush(self._queue, node.last_used << ID_BITS | node.node_id)

    def _nodes(self) -> list[Node]:
        """Return every node, the root first, parents before children."""
        nodes = [self._root]
        for node in nodes:
            nodes.extend(node.children.values())
        return nodes
