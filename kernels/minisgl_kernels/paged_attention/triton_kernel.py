"""paged_attention in Triton: 16 rows (query token, head of the group) of one KV head per program.

Keys come in blocks of a size that head_dim decides, at multiples of that size, in ascending position, with
a running maximum. A row whose keys are all hidden in a block is left as it was, bit for bit, so what a
program holds beside a row does not matter to it. Programs find their request themselves: no length is read
back.
Definition: reference.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minisgl_kernels.contract import as_contiguous_rows
from minisgl_kernels.paged_attention import torch_kernel
from minisgl_kernels.paged_attention.requests import Arguments, check
from minisgl_kernels.triton_calls import INTERPRETED, block_of, computes, narrow

ROWS, LARGEST_TILE = 16, 8192  # elements of a block of keys


@triton.jit
def _attend(
    q,
    q_stride,
    k_cache,
    k_stride,
    v_cache,
    v_stride,
    page_table,
    row_stride,
    column_stride,
    rows,
    q_starts,
    kv_lens,
    num_reqs,
    out,
    num_heads,
    group,
    head_dim,
    scale,
    window,
    WIDEN: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    program, kv_head = tl.program_id(0), tl.program_id(1)
    request, block, num_blocks = 0, 2**20, 0
    for number in range(num_reqs):
        size = (tl.load(q_starts + number + 1) - tl.load(q_starts + number)) * group
        is_mine = (program >= num_blocks) & (program < num_blocks + tl.cdiv(size, ROWS))
        request = tl.where(is_mine, number, request)
        block = tl.where(is_mine, program - num_blocks, block)
        num_blocks += tl.cdiv(size, ROWS)
    q_start, q_end = tl.load(q_starts + request), tl.load(q_starts + request + 1)
    kv_len = tl.load(kv_lens + request)
    # a program beyond the last block has no rows: it reads and writes nothing
    flat = block * ROWS + tl.arange(0, ROWS)
    table = page_table + tl.load(rows + request).to(tl.int64) * row_stride
    is_row = flat < (q_end - q_start) * group
    token = (q_start + flat // group).to(tl.int64)
    position = kv_len - q_end + token
    head = kv_head * group + flat % group
    at = tl.arange(0, WIDTH)
    place = token[:, None] * q_stride + head[:, None] * head_dim + at[None, :]
    query = tl.load(q + place, mask=is_row[:, None] & (at[None, :] < head_dim), other=0)
    if WIDEN:
        query = query.to(tl.float32)
    low = tl.maximum(position - window + 1, 0)
    start = tl.min(tl.where(is_row, low, 2147483647), axis=0) // KEYS * KEYS
    end = tl.max(tl.where(is_row, position, 0), axis=0) + 1
    largest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    sums = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for first in range(start, end, KEYS):
        key = first + tl.arange(0, KEYS)
        is_key = (key < end) & (key >= tl.min(tl.where(is_row, low, 2147483647), axis=0))
        slot = tl.load(table + key.to(tl.int64) * column_stride, mask=is_key, other=0).to(tl.int64)
        inside = is_key[:, None] & (at[None, :] < head_dim)
        k = tl.load(
            k_cache + slot[:, None] * k_stride + kv_head * head_dim + at[None, :], mask=inside, other=0
        )
        v = tl.load(
            v_cache + slot[:, None] * v_stride + kv_head * head_dim + at[None, :], mask=inside, other=0
        )
        if WIDEN:
            k = k.to(tl.float32)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        seen = (key[None, :] <= position[:, None]) & (key[None, :] >= low[:, None]) & is_row[:, None]
        scores = tl.where(seen, scores, float("-inf"))
        above = tl.maximum(largest, tl.max(scores, axis=1))
        known = tl.where(above == float("-inf"), 0.0, above)
        weights = tl.exp(scores - known[:, None])
        shrink = tl.exp(largest - known)
        total = total * shrink + tl.sum(weights, axis=1)
        sums = tl.dot(weights, v.to(tl.float32), sums * shrink[:, None], input_precision="ieee")
        largest = above
    result = sums / tl.where(is_row, total, 1.0)[:, None]
    to = (token[:, None] * num_heads + head[:, None]) * head_dim + at[None, :]
    tl.store(out + to, narrow(result, out.dtype.element_ty), mask=is_row[:, None] & (at[None, :] < head_dim))


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    rows: Tensor,
    q_starts: Tensor,
    kv_lens: Tensor,
    scale: float,
    sliding_window: int | None = None,
) -> Tensor:
    """Attend from each request's query tokens to the slots its row lists (see reference.py)."""
    if not computes(q):
        return torch_kernel.paged_attention(
            q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, scale, sliding_window
        )
    check(Arguments(q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, sliding_window))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    num_heads, num_kv_heads, head_dim = q.shape[1], k_cache.shape[1], q.shape[2]
    group = num_heads // num_kv_heads
    width = block_of(head_dim, least=16)
    q, num_reqs = as_contiguous_rows(q), rows.shape[0]
    if out.numel():
        most_blocks = num_reqs + q.shape[0] * group // ROWS
        _attend[(most_blocks, num_kv_heads)](
            q,
            q.stride(0),
            k_cache,
            k_cache.stride(0),
            v_cache,
            v_cache.stride(0),
            page_table,
            *page_table.stride(),
            rows.contiguous(),
            q_starts.contiguous(),
            kv_lens.contiguous(),
            num_reqs,
            out,
            num_heads,
            group,
            head_dim,
            scale,
            2**30 if sliding_window is None else sliding_window,
            WIDEN=INTERPRETED,
            ROWS=ROWS,
            KEYS=min(128, LARGEST_TILE // width),
            WIDTH=width,
        )
    return out
