"""Everything that needs a GPU, in one run: build, kernel tests, the engine on CUDA, and each kernel's time.

    make gpu PYTHON=/path/to/python

That interpreter must have a CUDA build of torch, triton, pytest and hypothesis; nothing is installed. Each
kernel's time stands beside its floor (the bytes it must move over the speed of a plain copy, or for a large
product its operations over those of torch's own product) and beside the backend `torch` on the same device.
Exit code: 0 if all is right, 1 if a test failed, 2 if it cannot run here, in words.

Nothing here judges a result: the tests do.
Chapter: kernels/README.md
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from minisgl_kernels import backends

if TYPE_CHECKING:
    from torch import Tensor

    from minisgl_kernels.backends import Ops

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("torch", "triton", "pytest", "hypothesis")
BACKENDS = ("triton", "cuda")
TESTS = (
    ("kernels", ("tests/kernels", "-k", "triton or cuda", "-m", "not slow")),
    ("engine and everything marked gpu", ("tests", "-m", "gpu")),
)
NUM_REQS, NUM_KEYS, NUM_TOKENS = 32, 4096, 4096
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN = 32, 8, 128, 4096
REPEATS, WARM_UPS = 20, 3


@dataclass(frozen=True)
class Case:
    """One call of one kernel. num_bytes: what it must move; num_operations: of a product, else 0."""

    name: str
    call: Callable[[Ops], object]
    num_bytes: int
    num_operations: int = 0


def main() -> int:
    """Build, test and measure; say what happened."""
    reason = why_not()
    if reason is not None:
        _say(f"gpu: cannot run here: {reason}")
        return 2
    failed = [name for name, words in TESTS if not _passes(name, words)]
    for line in table():
        _say(line)
    _say(f"FAILED: {', '.join(failed)}" if failed else "all tests passed")
    return 1 if failed else 0


def why_not() -> str | None:
    """The reason why nothing can run here, None if it can; builds what has to be built."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"{sys.executable} has no {', '.join(missing)}"
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    for name in BACKENDS:
        reason = backends.why_not(name)
        _say(f"backend {name}: {reason or 'ready'}")
    return backends.why_not(BACKENDS[0])


def _passes(name: str, words: tuple[str, ...]) -> bool:
    _say(f"+ pytest {' '.join(words)}")
    done = subprocess.run([sys.executable, "-P", "-m", "pytest", "-q", *words], cwd=ROOT, check=False)
    _say(f"{name}: {'passed' if done.returncode == 0 else f'exit code {done.returncode}'}")
    return done.returncode == 0


def table() -> Iterator[str]:
    """A line per kernel: microseconds of each backend, of torch's, and the floor."""
    import torch

    bytes_per_us, operations_per_us = _speeds()
    yield f"{torch.cuda.get_device_name()}: copy {bytes_per_us / 1e3:.0f} GB/s, bfloat16"
    names = [name for name in (*BACKENDS, "torch") if backends.why_not(name) is None]
    yield f"{'kernel':24}{'floor us':>12}" + "".join(f"{name + ' us':>12}" for name in names)
    for case in cases():
        floor = max(case.num_bytes / bytes_per_us, case.num_operations / operations_per_us)
        times = [microseconds(partial(case.call, backends.get(name))) for name in names]
        yield f"{case.name:24}{floor:12.1f}" + "".join(f"{time:12.1f}" for time in times)


def microseconds(work: Callable[[], object]) -> float:
    """Median time of the device for one call."""
    import torch

    for _ in range(WARM_UPS):
        work()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return float(median(times))


def _speeds() -> tuple[float, float]:
    """Bytes a plain copy reads and writes, and operations of torch's product, each per microsecond."""
    import torch

    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    square = torch.ones(HIDDEN, HIDDEN, dtype=torch.bfloat16, device="cuda")
    copied = 2 * source.nbytes / microseconds(lambda: target.copy_(source))
    return copied, 2 * HIDDEN**3 / microseconds(lambda: square @ square)


def cases(device: str = "cuda") -> Iterator[Case]:
    """Every kernel of the device once, in the shape of a model of 8 billion weights."""
    import torch

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device=device).sub(0.5).to(torch.bfloat16)

    def ints(values: object) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.int32, device=device)

    num_slots = NUM_REQS * NUM_KEYS
    k_cache, v_cache = (rand(num_slots, NUM_KV_HEADS, HEAD_DIM) for _ in range(2))
    table = torch.randperm(num_slots, device=device).int().view(NUM_REQS, NUM_KEYS)
    row_bytes = 2 * NUM_KV_HEADS * HEAD_DIM * 2  # of K and V
    k, v = (rand(NUM_TOKENS, NUM_KV_HEADS, HEAD_DIM) for _ in range(2))
    slots = table.flatten()[:NUM_TOKENS].contiguous()
    yield Case(
        "store_kv", lambda ops: ops.store_kv(k_cache, v_cache, slots, k, v), 2 * NUM_TOKENS * row_bytes
    )
    yield Case("gather_kv", lambda ops: ops.gather_kv(k_cache, v_cache, slots), 2 * NUM_TOKENS * row_bytes)

    q, rows, q_starts = rand(NUM_REQS, NUM_HEADS, HEAD_DIM), ints(range(NUM_REQS)), ints(range(NUM_REQS + 1))
    kv_lens, scale = ints([NUM_KEYS] * NUM_REQS), HEAD_DIM**-0.5
    yield Case(
        "attention, decode",
        lambda ops: ops.paged_attention(q, k_cache, v_cache, table, rows, q_starts, kv_lens, scale),
        num_slots * row_bytes,
    )
    long = rand(NUM_TOKENS, NUM_HEADS, HEAD_DIM)
    yield Case(
        "attention, extend",
        lambda ops: ops.paged_attention(
            long, k_cache, v_cache, table, rows[:1], ints([0, NUM_TOKENS]), kv_lens[:1], scale
        ),
        NUM_KEYS * row_bytes + 2 * long.nbytes,
        2 * NUM_TOKENS * NUM_KEYS * NUM_HEADS * HEAD_DIM,  # two products, half of the keys hidden
    )
    x, weight = rand(NUM_TOKENS, HIDDEN), rand(HIDDEN, HIDDEN)
    yield Case("rms_norm", lambda ops: ops.rms_norm(x, weight[0], 1e-5), 2 * x.nbytes)
    yield Case("silu_and_mul", lambda ops: ops.silu_and_mul(x, x), 3 * x.nbytes)
    positions = torch.arange(NUM_TOKENS, device=device)
    inv_freq = torch.rand(HEAD_DIM // 2, dtype=torch.float64, device=device)
    yield Case("rope", lambda ops: ops.rope(long, k, positions, inv_freq, 1.0), 2 * (long.nbytes + k.nbytes))
    for num_rows in (NUM_REQS, NUM_TOKENS):
        part = x[:num_rows]
        yield Case(
            f"linear, {num_rows} rows",
            partial(_multiply, part, weight),
            weight.nbytes + 2 * part.nbytes,
            2 * num_rows * HIDDEN * HIDDEN,
        )


def _multiply(x: Tensor, weight: Tensor, ops: Ops) -> Tensor:
    return ops.linear(x, weight)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
