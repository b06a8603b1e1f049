"""Pools between two pages that nobody may touch: one byte before or after them ends the process.

A pool starts where the page before it ends, or ends where the page after it starts. Poison in a tensor only
shows what is computed with; this shows a read that is thrown away, and whole vectors past the last head.
Guide: tests/README.md, kind (e)
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from minisgl_kernels.backends import Ops

PROT_NONE = 0
LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def guarded(shape: tuple[int, ...], dtype: torch.dtype, at_end: bool) -> Iterator[Tensor]:
    """A tensor of zeros that touches the page after it, or the page before it."""
    page, count = mmap.PAGESIZE, torch.Size(shape).numel()
    num_bytes = count * torch.empty(0, dtype=dtype).element_size()
    inside = -(-num_bytes // page) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for address in (first, first + page + inside):
        assert LIBC.mprotect(ctypes.c_void_p(address), page, PROT_NONE) == 0
    offset = page + (inside - num_bytes if at_end else 0)
    yield torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 8), (3, 20), (2, 64)])
def test_copies_stay_inside_the_pool(
    ops: Ops, num_kv_heads: int, head_dim: int, dtype: torch.dtype, at_end: bool
) -> None:
    """First and last slot are written and read back, nothing around them. (store_kv/reference.py)"""
    num_slots = 7
    shape = (2, num_slots, num_kv_heads, head_dim)
    slots = torch.tensor([num_slots - 1, 0, 3], dtype=torch.int32)
    with guarded(shape, dtype, at_end) as pool:
        k, v = (torch.rand(3, num_kv_heads, head_dim).to(dtype) for _ in range(2))

        ops.store_kv(pool[0], pool[1], slots, k, v)

        assert all(map(torch.equal, ops.gather_kv(pool[0], pool[1], slots), (k, v)))


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 8), (3, 20), (2, 64)])
@pytest.mark.parametrize("num_queries", [1, 9])
def test_attention_stays_inside_the_pool(
    ops: Ops, num_kv_heads: int, head_dim: int, dtype: torch.dtype, num_queries: int, at_end: bool
) -> None:
    """Decode and extend read first and last slot and no byte around them. (paged_attention/reference.py)"""
    num_slots = 17
    with guarded((2, num_slots, num_kv_heads, head_dim), dtype, at_end) as pool:
        pool.copy_(torch.rand(pool.shape))
        q = torch.rand(num_queries, 2 * num_kv_heads, head_dim).to(dtype)
        table = torch.arange(num_slots, dtype=torch.int32).flip(0)[None]
        rows, starts, lens = (
            torch.tensor(ints, dtype=torch.int32) for ints in ([0], [0, num_queries], [num_slots])
        )

        guarded_out = ops.paged_attention(q, pool[0], pool[1], table, rows, starts, lens, 0.3)

        copy = pool.clone()
        assert torch.equal(
            guarded_out, ops.paged_attention(q, copy[0], copy[1], table, rows, starts, lens, 0.3)
        )


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child calls nothing but the C library
@pytest.mark.parametrize("at_end", [False, True])
def test_a_read_around_a_pool_ends_the_process(at_end: bool) -> None:
    """Guard pages that stop nothing would prove nothing: a forked child tries, and a signal ends it."""
    with guarded((3, 1, 4), torch.float32, at_end) as pool:
        address = pool.data_ptr() + (pool.nbytes if at_end else -1)
        child = os.fork()
        if child == 0:
            faulthandler.disable()
            ctypes.string_at(address, 1)
            os._exit(0)
        _, status = os.waitpid(child, 0)

    # AddressSanitizer turns the signal into a report and exit code 1.
    reports = {1} if "libasan" in os.environ.get("LD_PRELOAD", "") else set[int]()
    assert os.waitstatus_to_exitcode(status) in {-signal.SIGSEGV, -signal.SIGBUS} | reports
