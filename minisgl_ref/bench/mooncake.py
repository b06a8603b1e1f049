"""A production trace through the engine's tree, `CacheManager` and `TableManager`, without a model.

The Mooncake conversation trace has one hash per block of a prompt; equal hashes mean equal prefixes
up to that block. Here each hash becomes one page of 16 tokens. Requests come one after the other:
match all but the last token, lock, allocate what is missing, write the row, insert the whole, give
duplicates back, unlock.

Hits are pages found by the match; they depend on the policy alone, not on the machine.
Chapter: spec/03-locks-and-eviction.md
"""

from __future__ import annotations

import gc
import json
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import process_time

from minisgl_ref.checks import CheckLevel
from minisgl_ref.kvcache.radix_cache import RadixCache
from minisgl_ref.scheduler.cache import CacheManager
from minisgl_ref.scheduler.table import TableManager

TRACE_VARIABLE = "MINISGL_MOONCAKE_TRACE"
PAGE_SIZE = 16  # tokens per block hash, and slots per page
POOLS = (20_000, 60_000, 200_000)  # pages
EXPECTED_HITS = {20_000: 82_360, 60_000: 103_393, 200_000: 105_592}  # pages; what SGLang's tree gets


@dataclass(frozen=True)
class MooncakeResult:
    """One pool's run over the trace; times are processor microseconds per request."""

    num_pages: int
    num_requests: int
    hits: int
    off_us: float
    local_us: float

    def __str__(self) -> str:
        verdict = "" if self.hits == EXPECTED_HITS.get(self.num_pages, self.hits) else " (NOT as expected)"
        return (
            f"mooncake, {self.num_pages} pages: {self.hits} pages hit{verdict}, "
            f"{self.off_us:.1f} us/request, {self.local_us:.1f} with LOCAL checks "
            f"({self.local_us / self.off_us:.2f} times)"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return asdict(self)


def trace_path() -> Path | None:
    """Return the trace that the environment names, if it is there."""
    name = os.environ.get(TRACE_VARIABLE)
    path = Path(name) if name else None
    return path if path is not None and path.is_file() else None


def load_keys(path: Path) -> list[bytes]:
    """Return the key of every request: block hash h is the page of tokens 16 h, 16 h + 1, ... 16 h + 15."""
    with path.open(encoding="utf-8") as lines:
        blocks = [json.loads(line)["hash_ids"] for line in lines]
    return [b"".join(_page_of(block) for block in request) for request in blocks]


def bench_mooncake(path: Path, pools: Sequence[int] = POOLS, repeats: int = 5) -> Iterator[MooncakeResult]:
    """Yield the result of each pool, checks OFF and LOCAL run in turn."""
    keys = load_keys(path)
    for num_pages in pools:
        seconds: dict[CheckLevel, list[float]] = {CheckLevel.OFF: [], CheckLevel.LOCAL: []}
        hits = 0
        for _ in range(repeats):
            for level, times in seconds.items():
                elapsed, hits = replay(keys, num_pages, level)
                times.append(elapsed)
        off, local = (median(times) / len(keys) * 1e6 for times in seconds.values())
        yield MooncakeResult(num_pages, len(keys), hits, off, local)


def replay(keys: Sequence[bytes], num_pages: int, level: CheckLevel) -> tuple[float, int]:
    """Serve every key once, one after the other, from an empty cache.

    Returns: the processor seconds it took, and the pages found by the matches.
    """
    max_seq_len = max(len(key) for key in keys) // 4
    manager = CacheManager(RadixCache(PAGE_SIZE), num_pages, level)
    table = TableManager(1, max_seq_len, PAGE_SIZE, num_pages, level=level)
    hits = 0
    gc.collect()
    begin = process_time()
    for key in keys:
        hits += _serve(manager, table, key)
    return process_time() - begin, hits


def _serve(manager: CacheManager, table: TableManager, key: bytes) -> int:
    """Take one request from match to release; return how many pages it found."""
    handle = manager.match_request(key)
    manager.lock(handle)
    row = table.allocate()
    pages = handle.pages()
    hits = len(pages)
    pages += manager.allocate(len(key) // (4 * PAGE_SIZE) - hits)
    table.write_row_pages(row, 0, pages)
    inserted = manager.insert(key, pages).prefix_len // PAGE_SIZE
    # [0, hits)          in the tree since the match; locked by our handle
    # [hits, inserted)   duplicates: the last page, when all of the key was cached
    if inserted > hits:
        manager.give_back(pages[hits:inserted])
    manager.unlock(handle)
    table.give_back(row)
    return hits


def _page_of(block: int) -> bytes:
    first = block * PAGE_SIZE
    return array("i", range(first, first + PAGE_SIZE)).tobytes()
