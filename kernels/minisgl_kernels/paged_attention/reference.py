"""paged_attention: out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p, h / group]) * v[p, h / group].

q, out            [num_tokens, num_heads, head_dim] F; out is new, no argument is changed
k_cache, v_cache  [num_slots, num_kv_heads, head_dim] F; group = num_heads / num_kv_heads
page_table        [num_rows + 1, row_width] i32 of slots: k[p] = k_cache[page_table[rows[r], p]]
rows, kv_lens     [num_reqs] i32: each request's row, and its tokens so far
q_starts          [num_reqs + 1] i32, 0 to num_tokens: r's query tokens are q_starts[r]:q_starts[r + 1]
The last query token of r stands at position kv_lens[r] - 1. A query at position s sees p <= s, and
p > s - sliding_window if there is one. Extend and decode are the same call. Read are only slots of
positions that some query token of the request sees, whatever the others hold.

Arithmetic in float64, one rounding to F at the end. `error_bound` is for a backend that accumulates to u
(2**-24 in float32) in any order. With Q = max_p scale * sum |q k|, a score errs by gamma(head_dim + 2, u) Q
and its distance to the largest by 2 u Q more, so a weight by a factor within exp(both) * (1 + 4 u) = 1 + e;
numerator and denominator are sums of kv_len terms: (2 e / (1 - e) + 2 gamma(kv_len + 2, u)) *
sum_p softmax_p |v|, then what exp may lose to underflow and the rounding to F.
Moves 2 * kv_len * num_kv_heads * head_dim elements per request.
The definition is the value; that a token's bits do not depend on its batch is each backend's own claim.
Versions: torch_kernel.py (float32, blocks fixed by position), paged_attention.c (two passes).
Run: pytest tests/kernels -k paged_attention
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.contract import gamma, unit_roundoff
from minisgl_kernels.paged_attention.requests import Arguments, Request, read_requests


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
    """Attend from each request's query tokens to the slots its row lists.

    Raises: ContractError for a shape, dtype, device, or a request whose numbers do not fit.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    arguments = Arguments(q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, sliding_window)
    for request in read_requests(arguments):
        queries = q[request.q_start : request.q_end].double()
        k, v = read_keys(request, k_cache, q.shape[1]), read_keys(request, v_cache, q.shape[1])
        scores = torch.einsum("qhd,phd->hqp", queries, k) * scale
        scores = scores.masked_fill(hidden_keys(request, sliding_window, q.device), float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        out[request.q_start : request.q_end] = torch.einsum("hqp,phd->qhd", weights, v).to(q.dtype)
    return out


def error_bound(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    rows: Tensor,
    q_starts: Tensor,
    kv_lens: Tensor,
    scale: float,
    sliding_window: int | None,
    u: float,
) -> Tensor:
    """Bound, per element, what a backend that accumulates to u may differ from this definition."""
    bound = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    arguments = Arguments(q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, sliding_window)
    for request in read_requests(arguments):
        queries = q[request.q_start : request.q_end].double()
        k, v = read_keys(request, k_cache, q.shape[1]), read_keys(request, v_cache, q.shape[1]).abs()
        hidden = hidden_keys(request, sliding_window, q.device)
        scores = torch.einsum("qhd,phd->hqp", queries, k) * scale
        sizes = torch.einsum("qhd,phd->hqp", queries.abs(), k.abs()).masked_fill(hidden, 0) * abs(scale)
        largest = sizes.amax(dim=-1, keepdim=True)  # of |q k|, so at least the largest |score|
        spread = largest * (gamma(q.shape[2] + 2, u) + 2 * u)
        error = torch.exp(spread) * (1 + 4 * u) - 1
        factor = 2 * error / (1 - error) + 2 * gamma(request.kv_len + 2, u) + 2 * unit_roundoff(q.dtype)
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        underflow = request.kv_len * torch.finfo(torch.float32).tiny * v.amax()
        total = torch.einsum("hqp,phd->hqd", weights, v) * factor + underflow
        bound[request.q_start : request.q_end] = total.transpose(0, 1)
    return bound


def read_keys(request: Request, cache: Tensor, num_heads: int) -> Tensor:
    """K or V of the positions a request sees, one per query head: [num_keys, num_heads, head_dim] f64."""
    kept = cache[request.slots.long()].double()
    return kept.repeat_interleave(num_heads // cache.shape[1], dim=1)


def hidden_keys(request: Request, sliding_window: int | None, device: torch.device) -> Tensor:
    """Which positions each query token must not see: [num_queries, num_keys] bool."""
    keys = torch.arange(request.first_key, request.kv_len, device=device)
    queries = torch.arange(request.first_query, request.kv_len, device=device)[:, None]
    hidden = keys > queries
    return hidden if sliding_window is None else hidden | (keys <= queries - sliding_window)
