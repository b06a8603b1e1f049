"""Two kernels that move memory, on one thread, beside a plain copy of as many bytes in the same run.

Decode attention reads K and V of 4,096 keys once, in the shape of SmolLM2's heads; `store_kv` reads and
writes 4,096 tokens. Both are over a copy of as many bytes, counted once. Kernel and copy take turns; each
figure is a median. Slots lie in no order: pages of one slot.

Nothing here judges what a kernel computes.
Chapter: kernels/README.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minisgl_kernels.backends import Ops

NUM_TOKENS = 4096
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64
REPEATS = 60


@dataclass(frozen=True)
class KernelResult:
    """One kernel and the copy. `ratio`: the copy's time over the kernel's; 1 is as fast as a copy."""

    kernel: str
    num_bytes: int
    gigabytes_per_second: float
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.kernel}, {NUM_TOKENS} tokens, float32, one thread: {self.gigabytes_per_second:.1f} GB/s, "
            f"{self.ratio:.0%} of a plain copy"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return asdict(self)


def bench_kernels(ops: Ops) -> Iterator[KernelResult]:
    """Measure decode attention and store_kv of one backend.

    Mutates: torch's number of threads, put back at the end.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    pool = torch.rand(2, NUM_TOKENS, NUM_KV_HEADS, HEAD_DIM, generator=generator)
    copied, slots = torch.empty_like(pool), torch.randperm(NUM_TOKENS, generator=generator).int()
    q = torch.rand(1, NUM_HEADS, HEAD_DIM, generator=generator)
    rows, q_starts, kv_lens = (torch.tensor(ints, dtype=torch.int32) for ints in ([0], [0, 1], [NUM_TOKENS]))
    table, scale = slots.reshape(1, -1), HEAD_DIM**-0.5

    def attend() -> None:
        ops.paged_attention(q, pool[0], pool[1], table, rows, q_starts, kv_lens, scale)

    def store() -> None:
        ops.store_kv(copied[0], copied[1], slots, pool[0], pool[1])

    try:
        for name, kernel in (("decode attention", attend), ("store_kv", store)):
            seconds, copy_seconds = _side_by_side(kernel, lambda: copied.copy_(pool))
            yield KernelResult(name, pool.nbytes, pool.nbytes / seconds / 1e9, copy_seconds / seconds)
    finally:
        torch.set_num_threads(before)


def _side_by_side(kernel: Callable[[], object], copy: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of both, taking turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for work, taken in zip((kernel, copy), times, strict=True):
            start = perf_counter()
            work()
            taken.append(perf_counter() - start)
    return median(times[0]), median(times[1])
