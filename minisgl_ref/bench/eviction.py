"""What an evicted page costs as the tree grows: it must not grow with the number of leaves.

A tree of n leaves, each of one page below a shared first page, is evicted page by page. Half the
leaves were matched again after they were inserted, in an order unrelated to their age, so that the
order of eviction is not the order of insertion.

Nothing here writes a row: only the tree is measured.
Chapter: spec/03-locks-and-eviction.md
"""

from __future__ import annotations

import gc
from array import array
from dataclasses import asdict, dataclass
from statistics import median
from time import process_time

from minisgl_ref.kvcache.radix_cache import RadixCache

PAGE_SIZE = 16
LEAVES = (1_000, 10_000, 100_000)
NUM_EVICTED = 500  # pages per run, one at a time
STRIDE = 7919  # a prime: visits leaves in an order unrelated to their age


@dataclass(frozen=True)
class EvictionResult:
    """The cost of eviction from a tree of num_leaves leaves."""

    num_leaves: int
    us_per_page: float
    visits_per_page: float

    def __str__(self) -> str:
        return (
            f"eviction, {self.num_leaves} leaves: {self.us_per_page:.2f} us per evicted page, "
            f"{self.visits_per_page:.2f} nodes visited"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return asdict(self)


def bench_eviction(num_leaves: int, repeats: int = 5) -> EvictionResult:
    """Evict NUM_EVICTED pages one by one from a tree of `num_leaves` leaves; the median of `repeats`."""
    runs = [_timed_evictions(num_leaves) for _ in range(repeats)]
    seconds, visits = median(run[0] for run in runs), runs[0][1]
    return EvictionResult(num_leaves, seconds / NUM_EVICTED * 1e6, visits / NUM_EVICTED)


def tree_of_leaves(num_leaves: int, page_size: int = PAGE_SIZE) -> RadixCache:
    """Return a tree of a shared first page and `num_leaves` leaves of one page, half matched again."""
    tree = RadixCache(page_size)
    keys = [_key(leaf, page_size) for leaf in range(num_leaves)]
    for leaf, key in enumerate(keys):
        tree.insert_prefix(key, [0, leaf + 1])
    for turn in range(num_leaves // 2):
        tree.match_prefix(keys[2 * (turn * STRIDE % (num_leaves // 2))])
    return tree


def _timed_evictions(num_leaves: int) -> tuple[float, int]:
    tree = tree_of_leaves(num_leaves)
    gc.collect()
    before = tree.nodes_visited
    begin = process_time()
    for _ in range(NUM_EVICTED):
        tree.evict(PAGE_SIZE)
    return process_time() - begin, tree.nodes_visited - before


def _key(leaf: int, page_size: int) -> bytes:
    return array("i", [0] * page_size + [leaf + 1] * page_size).tobytes()
