"""The prefix cache an engine chooses, radix or naive, and the pages behind it.

`PrefixCache` joins a tree to the page pool: it turns pages into slots, evicts what is short and
gives pages back. The naive cache shares nothing: every match is empty, every insertion declined.

Requests and rows are the scheduler's; nothing here knows which request owns a page.
Chapter: spec/03-locks-and-eviction.md
"""

from __future__ import annotations

from minisgl_spec.errors import ContractError
from minisgl_spec.page_pool import PagePool
from minisgl_spec.radix_tree import Handle, InsertResult, RadixTree
from minisgl_spec.units import Page, Slots, Tokens, slots_to_pages


class NaiveTree(RadixTree):
    """A tree that never caches anything: only the root exists."""

    def insert_prefix(self, ids: Tokens, slots: Slots) -> InsertResult:
        """Decline: nothing is cached, the caller keeps all its slots."""
        if len(ids) != len(slots):
            raise ContractError(
                "insert_prefix", "one slot per token", {"tokens": len(ids), "slots": len(slots)}
            )
        return InsertResult(0, Handle(self.root, 0))


TREES = {"radix": RadixTree, "naive": NaiveTree}


class PrefixCache:
    """A tree and the pool its pages come from."""

    def __init__(self, kind: str, page_size: int, num_pages: int) -> None:
        if kind not in TREES:
            raise ContractError("PrefixCache", f"cache in {tuple(TREES)}", {"cache": kind})
        self.page_size = page_size
        self.tree = TREES[kind](page_size)
        self.pool = PagePool(num_pages)

    @property
    def available_pages(self) -> int:
        """Pages that allocation can reach: free ones and evictable ones."""
        return len(self.pool.free_pages) + self.tree.evictable_size // self.page_size

    def match_all_but_last(self, ids: Tokens) -> Handle:
        """Match everything but the last token, so that at least one token is left to compute.

        The model must run on the last token: its logits choose the first output.
        """
        # CHECK
        if not ids:
            raise ContractError("match_all_but_last", "at least one token", {"ids": tuple(ids)})
        # RETURN
        return self.tree.match_prefix(ids[:-1])

    def allocate(self, count: int) -> tuple[tuple[Page, ...], tuple[Page, ...]]:
        """Take `count` pages, evicting what the free list is short of.

        Returns: the pages taken, and the pages evicted on the way, in order.
        Raises:  ContractError if count exceeds available_pages.
        """
        # CHECK
        if not 0 <= count <= self.available_pages:
            raise ContractError(
                "allocate",
                "0 <= count <= available pages",
                {"count": count, "free": len(self.pool.free_pages), "available": self.available_pages},
                "Admission must count what allocation will take.",
            )
        # CHANGE
        short = max(0, count - len(self.pool.free_pages))
        evicted = slots_to_pages(self.tree.evict(short * self.page_size), self.page_size)
        self.pool.give(evicted)
        # RETURN
        return self.pool.take(count), evicted

    def reset(self) -> None:
        """Forget everything cached; every page is free again, in order of its number."""
        self.tree.reset()
        self.pool.free_pages = tuple(range(self.pool.num_pages))
