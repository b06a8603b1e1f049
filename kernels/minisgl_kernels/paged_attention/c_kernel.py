"""paged_attention in C: shapes are checked here, requests and slots in C before a key is read.

When C refuses, `read_requests` says why in words. Definition: reference.py. Source: paged_attention.c
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.build import load
from minisgl_kernels.c_calls import TYPES, computes, num_threads, pointer
from minisgl_kernels.contract import as_contiguous_rows, check_on_cpu
from minisgl_kernels.paged_attention import torch_kernel
from minisgl_kernels.paged_attention.requests import OPERATION, Arguments, check_shapes, read_requests

DONE, NO_MEMORY = -1, -2


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
    arguments = Arguments(q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, sliding_window)
    check_shapes(arguments)
    check_on_cpu(OPERATION, q)
    if not computes(q):
        return torch_kernel.paged_attention(
            q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, scale, sliding_window
        )
    q, table = as_contiguous_rows(q), page_table if page_table.stride(1) == 1 else page_table.contiguous()
    rows, q_starts, kv_lens = rows.contiguous(), q_starts.contiguous(), kv_lens.contiguous()
    out = torch.empty(q.shape, dtype=q.dtype)
    library = load(OPERATION)
    outcome = library.lib.minisgl_paged_attention(
        pointer(library, "char *", q),
        q.stride(0),
        pointer(library, "char *", k_cache),
        k_cache.stride(0),
        pointer(library, "char *", v_cache),
        v_cache.stride(0),
        k_cache.shape[0],
        pointer(library, "int32_t *", table),
        table.shape[0],
        table.stride(0),
        table.shape[1],
        pointer(library, "int32_t *", rows),
        pointer(library, "int32_t *", q_starts),
        pointer(library, "int32_t *", kv_lens),
        rows.shape[0],
        q.shape[0],
        q.shape[1],
        k_cache.shape[1],
        q.shape[2],
        scale,
        sliding_window or 0,
        TYPES[q.dtype],
        pointer(library, "char *", out),
        num_threads(q.numel() * table.shape[1]),
    )
    if outcome == NO_MEMORY:
        raise MemoryError(f"{OPERATION}: no memory for the scores of {q.shape[0]} tokens")
    if outcome != DONE:
        read_requests(arguments)
    return out
