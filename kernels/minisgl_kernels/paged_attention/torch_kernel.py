"""paged_attention for serving: float32, in blocks that positions fix, so that bits depend on nothing else.

A query at position s is row s % 8 of query block s // 8, wherever its request and chunk begin; keys are
cut at multiples of 128. Every product then has one shape (8 * group queries, 128 keys), whatever the
batch, the chunk or the number of cached tokens; what is missing of a block is zeros, and hidden keys have
weight 0. The largest score is exact; sums over blocks run in ascending position, and a block without a
visible key adds an exact zero. So a token's bits do not depend on batch, chunking, page numbers or cached
length: tests/kernels checks it. A lone decode token costs what eight would.
Definition: reference.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.contract import compute_dtype
from minisgl_kernels.paged_attention.requests import Arguments, Request, read_requests

QUERIES_PER_BLOCK = 8
KEYS_PER_BLOCK = 128


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
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    arguments = Arguments(q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, sliding_window)
    for request in read_requests(arguments):
        tokens = slice(request.q_start, request.q_end)
        out[tokens] = _attend(request, q[tokens], k_cache, v_cache, scale, sliding_window)
    return out


def _attend(
    request: Request,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """One request: [num_queries, num_heads, head_dim], in the dtype of the computation."""
    k, v = _key_blocks(request, k_cache), _key_blocks(request, v_cache)
    first_block = request.first_query // QUERIES_PER_BLOCK
    outs = []
    for number, block in enumerate(_query_blocks(request, q, k_cache.shape[1]), start=first_block):
        seen = _seen_blocks(request, number, sliding_window)
        hidden = _hidden_keys(request, number, seen, sliding_window, q.device)
        outs.append(_attend_block(block, k[:, seen], v[:, seen], hidden, scale))
    stacked = torch.stack(outs)  # [num_blocks, num_kv_heads, queries, group, head_dim]
    by_position = stacked.transpose(1, 2).reshape(-1, q.shape[1], q.shape[2])
    offset = request.first_query - first_block * QUERIES_PER_BLOCK
    return by_position[offset : offset + q.shape[0]]


def _attend_block(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """One query block over the key blocks it sees.

    Args:
        q:       [num_kv_heads, queries, group, head_dim]
        k, v:    [num_kv_heads, num_blocks, keys, head_dim]
        hidden:  [num_blocks, queries, keys] bool

    Returns: [num_kv_heads, queries, group, head_dim]
    """
    num_kv_heads, queries, group, head_dim = q.shape
    rows = q.reshape(num_kv_heads, 1, queries * group, head_dim)
    scores = torch.matmul(rows, k.transpose(-1, -2)).mul_(scale)
    scores.masked_fill_(hidden.repeat_interleave(group, dim=1), float("-inf"))
    weights = scores.sub_(scores.amax(dim=(1, 3), keepdim=True)).exp_()
    sums, parts = weights.sum(dim=3, keepdim=True), torch.matmul(weights, v)
    total, out = sums[:, 0], parts[:, 0]
    for block in range(1, parts.shape[1]):
        total, out = total + sums[:, block], out + parts[:, block]
    return (out / total).view(num_kv_heads, queries, group, head_dim)


def _key_blocks(request: Request, cache: Tensor) -> Tensor:
    """K or V of what a request sees, zeros around it: [num_kv_heads, num_blocks, keys, head_dim]."""
    _, num_kv_heads, head_dim = cache.shape
    start = _first_key_block(request) * KEYS_PER_BLOCK
    num_blocks = -(-(request.kv_len - start) // KEYS_PER_BLOCK)
    shape = (num_kv_heads, num_blocks * KEYS_PER_BLOCK, head_dim)
    keys = torch.zeros(shape, dtype=compute_dtype(cache.dtype), device=cache.device)
    read = cache.index_select(0, request.slots)
    keys[:, request.first_key - start : request.kv_len - start] = read.transpose(0, 1)
    return keys.view(num_kv_heads, num_blocks, KEYS_PER_BLOCK, head_dim)


def _query_blocks(request: Request, q: Tensor, num_kv_heads: int) -> Tensor:
    """Queries at their place in their blocks: [num_blocks, num_kv_heads, queries, group, head_dim]."""
    _, num_heads, head_dim = q.shape
    first_block = request.first_query // QUERIES_PER_BLOCK
    num_blocks = -(-request.kv_len // QUERIES_PER_BLOCK) - first_block
    shape = (num_blocks * QUERIES_PER_BLOCK, num_heads, head_dim)
    padded = torch.zeros(shape, dtype=compute_dtype(q.dtype), device=q.device)
    offset = request.first_query - first_block * QUERIES_PER_BLOCK
    padded[offset : offset + q.shape[0]] = q
    group = num_heads // num_kv_heads
    return padded.view(num_blocks, QUERIES_PER_BLOCK, num_kv_heads, group, head_dim).transpose(1, 2)


def _first_key_block(request: Request) -> int:
    return request.first_key // KEYS_PER_BLOCK


def _seen_blocks(request: Request, query_block: int, sliding_window: int | None) -> slice:
    """Which of the request's key blocks a query block sees, counted from the first that is read."""
    start, end = query_block * QUERIES_PER_BLOCK, (query_block + 1) * QUERIES_PER_BLOCK
    low = 0 if sliding_window is None else max(0, start - sliding_window + 1)
    first, last = low // KEYS_PER_BLOCK, -(-min(end, request.kv_len) // KEYS_PER_BLOCK)
    read = _first_key_block(request)
    return slice(max(first - read, 0), last - read)


def _hidden_keys(
    request: Request, query_block: int, seen: slice, sliding_window: int | None, device: torch.device
) -> Tensor:
    """Which keys of the seen blocks each query of a block must not see: [num_blocks, queries, keys] bool."""
    read = _first_key_block(request)
    first, last = (read + seen.start) * KEYS_PER_BLOCK, (read + seen.stop) * KEYS_PER_BLOCK
    keys = torch.arange(first, last, device=device).view(-1, 1, KEYS_PER_BLOCK)
    start = query_block * QUERIES_PER_BLOCK
    queries = torch.arange(start, start + QUERIES_PER_BLOCK, device=device)[:, None]
    hidden = keys > queries
    return hidden if sliding_window is None else hidden | (keys <= queries - sliding_window)
