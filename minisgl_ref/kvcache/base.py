"""What the engine asks of a prefix cache: match, insert, lock, unlock, evict, and nothing else.

A cache maps token prefixes to the pages that hold their KV. A key is bytes, `TOKEN_BYTES` per token
in native order, because slices of bytes hash, compare and copy at memory speed; a value is a list of
page numbers, turned into slots once per batch. Sizes are in slots. A handle names a cached prefix;
while it is locked, the nodes of its path cannot be evicted.

This file never decides what is cached: `radix_cache.py` and `naive_cache.py` do. No cache ever owns
the free pages: `scheduler/cache.py` does.
Chapter: spec/02-radix-tree.md
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from minisgl_spec.errors import ContractError
from minisgl_spec.units import pages_to_slots
from minisgl_spec.views import CacheView, HandleView, NodeView

TOKEN_BYTES = 4  # bytes per token in a key: int32 in native order


class Node:
    """An edge of the tree with its page numbers: whole pages of tokens below the parent's.

    key:        bytes, TOKEN_BYTES for each of len(pages) * page_size tokens; empty in a root.
    children:   by the bytes of the first page of their key.
    ref_count:  locked handles at or below.
    last_used:  tick of the last operation that touched the node.
    node_id:    in order of creation; the half of a split that keeps its identity keeps its id.
    in_tree:    false for good once the node has been evicted or its cache reset.
    """

    __slots__ = (
        "children",
        "in_tree",
        "key",
        "last_used",
        "node_id",
        "pages",
        "parent",
        "ref_count",
    )

    def __init__(
        self,
        parent: Node | None,
        key: bytes,
        pages: list[int],
        last_used: int,
        node_id: int,
        ref_count: int = 0,
    ) -> None:
        self.parent = parent
        self.key = key
        self.pages = pages
        self.children: dict[bytes, Node] = {}
        self.ref_count = ref_count
        self.last_used = last_used
        self.node_id = node_id
        self.in_tree = True

    def path(self) -> list[Node]:
        """Return the nodes from below the root to this one."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


class Handle:
    """A cached prefix of prefix_len tokens, as a match or an insertion found it.

    Splits below or inside the path leave a handle as it is; eviction of its node, possible only
    while it is not locked, leaves it without pages.
    """

    __slots__ = ("cache", "is_locked", "node", "prefix_len")

    def __init__(self, cache: PrefixCache, node: Node, prefix_len: int) -> None:
        self.cache = cache
        self.node = node
        self.prefix_len = prefix_len
        self.is_locked = False

    def view(self) -> HandleView:
        """Describe the handle in plain values; its node may be gone."""
        return HandleView(self.node.node_id, self.prefix_len, self.is_locked)

    def pages(self) -> list[int]:
        """Return the pages of the prefix, from the root to the node.

        Mutates: nothing.
        Raises:  ContractError if the node has been evicted.
        """
        node = self.node
        if not node.in_tree:
            raise ContractError(
                "pages",
                "a handle whose node is in the tree",
                {"node": node.node_id, "prefix_len": self.prefix_len},
                "Its pages were evicted, or the cache was reset; match again.",
            )
        parent = node.parent
        if parent is None or parent.parent is None:
            return node.pages.copy()
        pages: list[int] = []
        for above in node.path():
            pages += above.pages
        return pages


class InsertResult(NamedTuple):
    """What an insertion found, and a handle of the whole pages it was given.

    prefix_len: tokens that were cached already; the caller still owns the pages it brought for them.
    handle:     covers all whole pages of the key; not locked.
    """

    prefix_len: int
    handle: Handle


class PrefixCache(ABC):
    """A map from token prefixes to pages, with locks, and eviction in order of last use.

    page_size:       slots per page.
    evictable_size:  slots under ref_count 0.
    protected_size:  slots under ref_count above 0.
    nodes_visited:   nodes that all evictions so far have looked at; the measure of their work.
    """

    def __init__(self, page_size: int) -> None:
        if page_size < 1:
            raise ContractError(type(self).__name__, "page_size >= 1", {"page_size": page_size})
        self.page_size = page_size
        self.evictable_size = 0
        self.protected_size = 0
        self.nodes_visited = 0
        self._page_bytes = page_size * TOKEN_BYTES
        self._root = Node(None, b"", [], 0, 0)
        self._locked: dict[Handle, None] = {}  # in the order of locking

    @abstractmethod
    def match_prefix(self, key: bytes) -> Handle:
        """Return a handle of the longest cached prefix of `key` in whole pages; not locked."""

    @abstractmethod
    def insert_prefix(self, key: bytes, pages: Sequence[int]) -> InsertResult:
        """Cache the whole pages of `key` and say how much of it was cached already."""

    @abstractmethod
    def lock(self, handle: Handle) -> None:
        """Protect the path of a handle from eviction."""

    @abstractmethod
    def unlock(self, handle: Handle) -> None:
        """Take back the protection a lock gave."""

    @abstractmethod
    def evict(self, size: int) -> list[int]:
        """Forget at least `size` slots and return their pages, in eviction order."""

    @abstractmethod
    def reset(self) -> list[int]:
        """Forget everything and return the pages; refused while a handle is locked."""

    @abstractmethod
    def view(self) -> CacheView:
        """Describe the cache in plain values for `minisgl_spec.invariants`."""

    @property
    def locked_handles(self) -> tuple[Handle, ...]:
        """The handles that hold a lock, in the order of locking."""
        return tuple(self._locked)

    def _check_key(self, operation: str, key: bytes) -> None:
        if len(key) % TOKEN_BYTES:
            raise ContractError(
                operation,
                f"a key of {TOKEN_BYTES} bytes per token",
                {"key_bytes": len(key)},
                "Keys are int32 tokens in native order.",
            )

    def _check_insert(self, key: bytes, pages: Sequence[int]) -> int:
        self._check_key("insert_prefix", key)
        num_pages = len(key) // self._page_bytes
        if len(pages) < num_pages:
            raise ContractError(
                "insert_prefix",
                "a page for every whole page of the key",
                {"pages": len(pages), "key_pages": num_pages, "page_size": self.page_size},
            )
        return num_pages

    def _refuse_lock(self, handle: Handle) -> NoReturn:
        node = handle.node
        got = {"node": node.node_id, "is_locked": handle.is_locked, "in_tree": node.in_tree}
        if handle.cache is not self:
            raise ContractError("lock", "a handle of this cache", got, "It came from another cache.")
        if handle.is_locked:
            raise ContractError(
                "lock", "a handle that is not locked", got, "A handle is locked at most once."
            )
        advice = "It was evicted, or the cache was reset, before the lock; match again."
        raise ContractError("lock", "a handle whose node is in the tree", got, advice)

    def _refuse_unlock(self, handle: Handle) -> NoReturn:
        got = {"node": handle.node.node_id, "is_locked": handle.is_locked}
        if handle.cache is not self:
            raise ContractError("unlock", "a handle of this cache", got, "It came from another cache.")
        raise ContractError("unlock", "a locked handle", got, "It was never locked, or is unlocked twice.")

    def _refuse_evict(self, size: int) -> NoReturn:
        need = "size >= 0" if size < 0 else "size <= evictable_size"
        got = {"size": size, "evictable_size": self.evictable_size, "protected_size": self.protected_size}
        advice = "" if size < 0 else "Unlock a handle or ask for less."
        raise ContractError("evict", need, got, advice)

    def _check_reset(self) -> None:
        if self._locked:
            raise ContractError(
                "reset",
                "no locked handle",
                {"locked_handles": len(self._locked), "protected_size": self.protected_size},
                "Finish or abort the requests that hold them.",
            )


def view_of(cache: PrefixCache, nodes: Sequence[Node]) -> CacheView:
    """Describe a cache and the given nodes of it, as they are, right or wrong."""
    return CacheView(
        page_size=cache.page_size,
        nodes=tuple([_node_view(node, cache.page_size) for node in nodes]),
        locked_handles=tuple([handle.view() for handle in cache.locked_handles]),
        evictable_size=cache.evictable_size,
        protected_size=cache.protected_size,
    )


def tokens_of(key: bytes) -> tuple[int, ...]:
    """Return the token ids of a key."""
    return tuple(memoryview(key).cast("i"))


def _node_view(node: Node, page_size: int) -> NodeView:
    return NodeView(
        node_id=node.node_id,
        parent=None if node.parent is None else node.parent.node_id,
        children=tuple(sorted([(tokens_of(page), child.node_id) for page, child in node.children.items()])),
        key=tokens_of(node.key),
        slots=pages_to_slots(node.pages, page_size),
        ref_count=node.ref_count,
        last_used=node.last_used,
    )
