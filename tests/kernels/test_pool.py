"""The pool of threads under the C kernels: their number never shows in a bit; a fork does not break it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minisgl_kernels import backends, build
from minisgl_kernels.backends import Ops

NUM_THREADS = (2, 3, 7)
FORK = """
import os, sys, torch
from minisgl_kernels import backends
torch.set_num_threads(2)
ops = backends.get("c")
x, weight = torch.rand(64, 512), torch.rand(1024, 512)
expected = ops.linear(x, weight)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(ops.linear(x, weight), expected) else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), torch.equal(ops.linear(x, weight), expected))
"""


@pytest.fixture(scope="module")
def c_ops() -> Iterator[Ops]:
    reason = backends.why_not("c")
    if reason is not None:
        pytest.skip(f"backend c: {reason}")
    before = torch.get_num_threads()
    yield backends.get("c")
    torch.set_num_threads(before)


def every_result(ops: Ops) -> list[Tensor]:
    """What each kernel that has tasks returns for inputs large enough to share."""
    generator = torch.Generator().manual_seed(1)
    num_tokens, num_heads, head_dim = 300, 9, 64

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator) - 0.5

    x, q, k, v = (
        rand(num_tokens, 1024),
        rand(num_tokens, num_heads, head_dim),
        rand(512, 3, 64),
        rand(512, 3, 64),
    )
    table = torch.randperm(512, generator=generator).int().reshape(1, 512)
    attention = ops.paged_attention(
        q,
        k,
        v,
        table,
        *(torch.tensor(ints, dtype=torch.int32) for ints in ([0], [0, num_tokens], [511])),
        0.125,
    )
    settings = [torch.full((num_tokens,), value) for value in (0.7, 0.9, 0.3)]
    return [
        ops.linear(x, rand(700, 1024)),
        attention,
        *ops.add_rms_norm(x, rand(num_tokens, 1024), rand(1024), 1e-5),
        *ops.rope(q, k[:num_tokens], torch.arange(num_tokens), rand(head_dim // 2).abs().double(), 1.0),
        ops.silu_and_mul(x, rand(num_tokens, 1024)),
        ops.sample(x, settings[0], torch.full((num_tokens,), 40), settings[1], settings[2]),
    ]


@pytest.mark.parametrize("num_threads", NUM_THREADS)
def test_the_number_of_threads_changes_no_bit(c_ops: Ops, num_threads: int) -> None:
    """Tasks write apart from each other, and a row's sums belong to one task. (kernels/README.md)"""
    torch.set_num_threads(1)
    expected = every_result(c_ops)
    torch.set_num_threads(num_threads)

    for _ in range(5):
        assert all(map(torch.equal, every_result(c_ops), expected))


def test_two_callers_at_once_get_their_own_results(c_ops: Ops) -> None:
    """While one call has the pool, another runs on its own thread."""
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.rand(48, 512, generator=generator) for _ in range(4)]
    weight = torch.rand(1024, 512, generator=generator)
    expected = [c_ops.linear(x, weight) for x in inputs]
    results: list[list[Tensor]] = [[] for _ in inputs]

    def call(idx: int) -> None:
        results[idx].extend(c_ops.linear(inputs[idx], weight) for _ in range(30))

    threads = [threading.Thread(target=call, args=(idx,)) for idx in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [len(got) for got in results] == [30] * 4
    assert all(torch.equal(one, want) for got, want in zip(results, expected, strict=True) for one in got)


def test_a_forked_child_makes_threads_of_its_own(c_ops: Ops) -> None:
    """The parent's workers do not exist in the child: a call there ends, with the same bits."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", "-c", FORK]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)

    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_without_threads_one_does_it_all_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A compiler that has no POSIX threads builds the pool for one. (kernels/README.md)"""
    reason = backends.why_not("c")
    if reason is not None:
        pytest.skip(f"backend c: {reason}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "THREADS", ("-no-such-flag",))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        build.load_pool.__wrapped__()

    assert [str(one.message)[:37] for one in said] == ["the C kernels run on one thread: no P"]
