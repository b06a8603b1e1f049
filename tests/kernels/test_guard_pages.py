"""Tensors between two pages that nobody may touch: one byte before or after them ends the process.

Each argument starts where the page before it ends, or ends where the page after it starts. Poison in a tensor
only shows what is computed with; this shows a read that is thrown away, and whole vectors past the last head.
Guide: tests/README.md, kind (e)
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch import Tensor

from minisgl_kernels import backends, build
from minisgl_kernels.backends import Ops

PROT_NONE = 0
LIBC = ctypes.CDLL(None, use_errno=True)
HEADS = [(1, 8), (3, 20), (2, 64), (1, 256)]  # num_kv_heads, head_dim

Place = Callable[[Tensor], Tensor]


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


@pytest.fixture(params=[False, True], ids=["after_a_guard", "before_a_guard"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Copies a tensor between guard pages."""
    with ExitStack() as stack:

        def copy(tensor: Tensor) -> Tensor:
            there = stack.enter_context(guarded(tuple(tensor.shape), tensor.dtype, request.param))
            return there.copy_(tensor)

        yield copy


def leave(tensor: Tensor) -> Tensor:
    return tensor.clone()


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), HEADS)
def test_copies_stay_inside_their_arguments(
    ops: Ops, num_kv_heads: int, head_dim: int, dtype: torch.dtype, place: Place
) -> None:
    """First and last slot are written and read back, nothing around them. (store_kv/reference.py)"""
    num_slots = 7
    pool, slots = place(torch.zeros(2, num_slots, num_kv_heads, head_dim).to(dtype)), i32(num_slots - 1, 0, 3)
    k, v = (rand(3, num_kv_heads, head_dim, dtype=dtype, seed=seed) for seed in range(2))

    ops.store_kv(pool[0], pool[1], place(slots), place(k), place(v))

    assert all(map(torch.equal, ops.gather_kv(pool[0], pool[1], place(slots)), (k, v)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("num_queries", [1, 9])
def test_attention_stays_inside_its_arguments(
    ops: Ops, num_kv_heads: int, head_dim: int, dtype: torch.dtype, num_queries: int, place: Place
) -> None:
    """Decode and extend read first and last slot and no byte around them. (paged_attention/reference.py)"""
    num_slots = 17

    def attend(place: Place) -> Tensor:
        pool = place(rand(2, num_slots, num_kv_heads, head_dim, dtype=dtype))
        q = place(rand(num_queries, 2 * num_kv_heads, head_dim, dtype=dtype, seed=1))
        table = place(torch.arange(num_slots, dtype=torch.int32).flip(0)[None])
        rows, starts, lens = place(i32(0)), place(i32(0, num_queries)), place(i32(num_slots))
        return ops.paged_attention(q, pool[0], pool[1], table, rows, starts, lens, 0.3)

    assert torch.equal(attend(place), attend(leave))


def written_table(ops: Ops, place: Place, page_size: int) -> tuple[Tensor, ...]:
    table = place(torch.full((3, 2 * page_size), -7, dtype=torch.int32))
    ops.write_page_table(table, place(i32(2, 0)), place(i32(1, 0)), place(i32(5, 7)), page_size)
    rows, positions = i32(2, 0, 2), i32(2 * page_size - 1, 0, page_size)
    return table, ops.read_page_table(table, place(rows), place(positions))


def sampled(ops: Ops, place: Place) -> tuple[Tensor, ...]:
    heat, mass, draws = (
        torch.tensor(values) for values in ([0.0, 0.7, 1.0], [1.0, 0.9, 0.5], [0.0, 0.3, 0.9])
    )
    arguments = (rand(3, 33), heat, torch.tensor([0, 5, -1]), mass, draws)
    return (ops.sample(*map(place, arguments)),)


def turned(ops: Ops, place: Place, dtype: torch.dtype) -> tuple[Tensor, ...]:
    q, k = (rand(3, heads, 20, dtype=dtype, seed=heads) for heads in (2, 1))
    return ops.rope(place(q), place(k), place(torch.tensor([0, 7, 99])), place(rand(10).double()), 1.25)


# The operations on rows, of 33 elements: no whole number of vectors. Each returns all it has written.
ROWS: dict[str, Callable[[Ops, Place, torch.dtype], tuple[Tensor, ...]]] = {
    "page_table-1": lambda ops, place, _: written_table(ops, place, 1),
    "page_table-3": lambda ops, place, _: written_table(ops, place, 3),
    "page_table-64": lambda ops, place, _: written_table(ops, place, 64),
    "embedding": lambda ops, place, dtype: (
        ops.embedding(place(torch.tensor([4, 0, 4])), place(rand(5, 33, dtype=dtype))),
    ),
    "linear": lambda ops, place, dtype: (
        ops.linear(*(place(rand(*shape, dtype=dtype)) for shape in ((13, 33), (35, 33), (35,)))),
    ),
    "rms_norm": lambda ops, place, dtype: (
        ops.rms_norm(place(rand(3, 33, dtype=dtype)), place(rand(33, dtype=dtype)), 1e-5),
    ),
    "add_rms_norm": lambda ops, place, dtype: ops.add_rms_norm(
        *(place(rand(*shape, dtype=dtype)) for shape in ((3, 33), (3, 33), (33,))), 1e-5
    ),
    "silu_and_mul": lambda ops, place, dtype: (
        ops.silu_and_mul(place(rand(3, 33, dtype=dtype)), place(rand(3, 33, dtype=dtype))),
    ),
    "rope": turned,
    "sample": lambda ops, place, _: sampled(ops, place),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("operation", ROWS)
def test_rows_stay_inside_their_arguments(ops: Ops, operation: str, dtype: torch.dtype, place: Place) -> None:
    """Every argument ends, or begins, at a guard page; the bits are those without one."""
    call = ROWS[operation]

    assert all(map(torch.equal, call(ops, place, dtype), call(ops, leave, dtype)))


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 64])
def test_compare_key_in_c_stays_inside_its_keys(place: Place, num_tokens: int) -> None:
    """Keys are `bytes`, which lie where Python puts them: the C function itself is called."""
    reason = backends.why_not("c")
    if reason is not None:
        pytest.skip(f"backend c: {reason}")
    library = build.load("compare_key")
    one, other = (place(i32(*range(num_tokens))) for _ in range(2))
    pointers = [library.ffi.cast("char *", key.data_ptr()) for key in (one, other)]

    assert library.lib.minisgl_compare_key(*pointers, num_tokens) == num_tokens


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
