"""What finds a kernel fault: each operation against its definition, on a few cases that hold every corner.

A judge returns the claim that is broken, or None. Positions beyond a request name a slot that exists and
holds NaN, so a fault that reads too far is a wrong result here, not a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from minisgl_kernels.contract import unit_roundoff
from minisgl_kernels.gather_kv import reference as gather_reference
from minisgl_kernels.linear import reference as linear_reference
from minisgl_kernels.page_table import reference as table_reference
from minisgl_kernels.paged_attention import reference as attention_reference
from minisgl_kernels.rms_norm import reference as norm_reference
from minisgl_kernels.rope import reference as rope_reference
from minisgl_kernels.sample import reference as sample_reference
from minisgl_kernels.silu_and_mul import reference as silu_reference
from minisgl_kernels.store_kv import reference as store_reference
from minisgl_ref.zoo.kernels import BATCH, BOUND, COPY, REFUSES
from minisgl_spec.errors import ContractError

U = unit_roundoff(torch.float32)
Operation = Callable[..., Any]


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def within(out: Tensor, exact: Tensor, bound: Tensor) -> bool:
    return bool(((out.double() - exact.double()).abs() <= bound).all())


def is_refused(operation: Operation, *arguments: Any) -> bool:
    try:
        operation(*arguments)
    except ContractError:
        return True
    return False


def attention_calls() -> Iterator[tuple[Any, ...]]:
    """Arguments of paged_attention: prompts, chunks and decodes, groups, windows, large scores."""
    for seed, (lens, num_kv_heads, group, head_dim, window, size) in enumerate(
        (
            (((70, 40), (33, 1), (150, 1)), 2, 3, 64, None, 1.0),
            (((21, 21), (6, 6), (1, 1)), 2, 2, 20, 5, 1.0),
            (((40, 3), (19, 2)), 1, 1, 64, None, 40.0),
        )
    ):
        longest = max(kv_len for kv_len, _ in lens)
        num_slots = sum(kv_len for kv_len, _ in lens) + 9
        order = torch.randperm(num_slots, generator=torch.Generator().manual_seed(seed)).int()
        k, v = (randn(seed + more, num_slots, num_kv_heads, head_dim) for more in (0, 9))
        poison, order = order[0], order[1:]
        k[poison], v[poison] = float("nan"), float("nan")
        table = poison.repeat(len(lens) + 1, longest + 3)
        rows = list(range(len(lens), 0, -1))
        for (kv_len, q_len), row in zip(lens, rows, strict=True):
            table[row, :kv_len], order = order[:kv_len], order[kv_len:]
            first = 0 if window is None else max(0, kv_len - q_len - window + 1)
            k[table[row, :first].long()] = v[table[row, :first].long()] = float("nan")
        q = randn(seed + 5, sum(q_len for _, q_len in lens), num_kv_heads * group, head_dim) * size
        starts = torch.tensor([0, *(q_len for _, q_len in lens)]).cumsum(0).int()
        kv_lens = i32(*(kv_len for kv_len, _ in lens))
        yield q, k, v, table, i32(*rows), starts, kv_lens, head_dim**-0.5, window


def judge_paged_attention(operation: Operation) -> str | None:
    for call in attention_calls():
        exact = attention_reference.paged_attention(*call)
        out = operation(*call)
        if not within(out, exact, attention_reference.error_bound(*call, u=U)):
            return BOUND
        q, k, v, table, rows, starts, kv_lens, scale, window = call
        start, end = starts[:2].tolist()
        for token in range(start, end, 3):
            position = kv_lens[:1] - end + token + 1
            alone = operation(q[token : token + 1], k, v, table, rows[:1], i32(0, 1), position, scale, window)
            if not torch.equal(alone[0], out[token]):
                return BATCH
        wrong = table.clone()
        wrong[rows[0], int(kv_lens[0]) - 1] = k.shape[0]
        if not is_refused(operation, q, k, v, wrong, rows, starts, kv_lens, scale, window):
            return REFUSES
    return None


def judge_linear(operation: Operation) -> str | None:
    for num_rows, num_inputs, num_outputs in ((13, 70, 40), (1, 64, 32), (40, 33, 5)):
        x, weight = randn(0, num_rows, num_inputs), randn(1, num_outputs, num_inputs)
        bias = randn(2, num_outputs)
        for _ in range(2):
            out, exact = operation(x, weight, bias), linear_reference.linear(x, weight, bias)
            if not within(out, exact, linear_reference.error_bound(x, weight, bias, U)):
                return BOUND
            if not torch.equal(out[:1], operation(x[:1], weight, bias)):
                return BATCH
            weight.mul_(2)
    return None


def judge_rms_norm(operation: Operation) -> str | None:
    for size in (1.0, 1e-3):
        x, weight = randn(0, 5, 70) * size, randn(1, 70)
        bound = norm_reference.error_bound(x, weight, 1e-5, U)
        if not within(operation(x, weight, 1e-5), norm_reference.rms_norm(x, weight, 1e-5), bound):
            return BOUND
    return None


def judge_add_rms_norm(operation: Operation) -> str | None:
    x, residual, weight = randn(0, 5, 70), randn(2, 5, 70), randn(1, 70)
    normed, total = operation(x, residual, weight, 1e-5)
    bound = norm_reference.error_bound(x + residual, weight, 1e-5, U)
    exact = norm_reference.rms_norm(x + residual, weight, 1e-5)
    return None if torch.equal(total, x + residual) and within(normed, exact, bound) else BOUND


def judge_silu_and_mul(operation: Operation) -> str | None:
    gate, up = randn(0, 3, 40) * 80, randn(1, 3, 40)
    exact, bound = silu_reference.silu_and_mul(gate, up), silu_reference.error_bound(gate, up, U)
    return None if within(operation(gate, up), exact, bound) else BOUND


def judge_rope(operation: Operation) -> str | None:
    q, k, inv_freq = randn(0, 4, 3, 40), randn(1, 4, 2, 40), 1 / (1 + torch.arange(20).float())
    positions = torch.tensor([0, 1, 77, 123_457])
    outs = operation(q, k, positions, inv_freq, 1.25)
    exacts = rope_reference.rope(q, k, positions, inv_freq, 1.25)
    bounds = [rope_reference.error_bound(x, positions, inv_freq, 1.25, U) for x in (q, k)]
    return None if all(map(within, outs, exacts, bounds)) else BOUND


def judge_store_kv(operation: Operation) -> str | None:
    pool, slots = torch.zeros(2, 12, 3, 4), i32(7, 0, 5)
    k, v, cache = randn(0, 3, 2, 4), randn(1, 3, 2, 4), pool[:, :9, :2]
    expected = pool.clone()
    store_reference.store_kv(expected[0, :9, :2], expected[1, :9, :2], slots, k, v)
    operation(cache[0], cache[1], slots, k, v)
    if not torch.equal(pool, expected):
        return COPY
    # the last slot of a cache of more than 4 GiB, of which nothing else is touched
    row = torch.ones(1, 1, 1 << 16, dtype=torch.uint8)
    large = torch.empty((1 << 16) + 2, 1, 1 << 16, dtype=torch.uint8)
    operation(large, torch.empty_like(large), i32(large.shape[0] - 1), row, row.clone())
    if not torch.equal(large[-1:], row):
        return COPY
    return None if is_refused(operation, cache[0], cache[1], i32(9, 0, 1), k, v) else REFUSES


def judge_gather_kv(operation: Operation) -> str | None:
    k_cache, v_cache, slots = randn(0, 9, 2, 4), randn(1, 9, 2, 4), i32(7, 0, 7, 3)
    expected, found = gather_reference.gather_kv(k_cache, v_cache, slots), operation(k_cache, v_cache, slots)
    return None if all(map(torch.equal, found, expected)) else COPY


def judge_write_page_table(operation: Operation) -> str | None:
    found, expected = (torch.full((3, 12), -1, dtype=torch.int32) for _ in range(2))
    entries = (i32(2, 0), i32(1, 2), i32(5, 3), 4)
    table_reference.write_page_table(expected, *entries)
    operation(found, *entries)
    return None if torch.equal(found, expected) else COPY


def judge_read_page_table(operation: Operation) -> str | None:
    table, rows = torch.arange(36, dtype=torch.int32).view(3, 12), i32(2, 0, 1)
    expected = table_reference.read_page_table(table, rows, i32(5, 11, 0))
    return None if torch.equal(operation(table, rows, i32(5, 11, 0)), expected) else COPY


def judge_sample(operation: Operation) -> str | None:
    """Four equal tokens: every boundary is exact."""
    logits, heat = torch.zeros(1, 4), torch.tensor([1.0])
    for top_k in (0, 1, 2, 3):
        for top_p in (1.0, 0.5, 0.51, 0.25):
            for uniform in (0.0, 0.25, 0.5, 0.75, 0.99):
                shares = (torch.tensor([share], dtype=torch.float64) for share in (top_p, uniform))
                settings = (heat, torch.tensor([top_k]), *shares)
                if not torch.equal(operation(logits, *settings), sample_reference.sample(logits, *settings)):
                    return COPY
    return None


JUDGES: dict[str, Callable[[Operation], str | None]] = {
    "paged_attention": judge_paged_attention,
    "linear": judge_linear,
    "rms_norm": judge_rms_norm,
    "add_rms_norm": judge_add_rms_norm,
    "silu_and_mul": judge_silu_and_mul,
    "rope": judge_rope,
    "store_kv": judge_store_kv,
    "gather_kv": judge_gather_kv,
    "write_page_table": judge_write_page_table,
    "read_page_table": judge_read_page_table,
    "sample": judge_sample,
}
