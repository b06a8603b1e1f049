"""paged_attention in CUDA C++: one block of threads per query token and head.

A batch of one token per request is a decode: its blocks need not look for their request. Which it is is read
from the lengths when they are checked; while a CUDA graph is captured, a batch of as many tokens as requests
is taken for one, as the engine captures decodes only. Definition: reference.py. Source: paged_attention.cu
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from minisgl_kernels.contract import as_contiguous_rows, can_read
from minisgl_kernels.cuda_build import launch
from minisgl_kernels.paged_attention import torch_kernel
from minisgl_kernels.paged_attention.requests import Arguments, check

TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
THREADS, MOST_WIDTH = 128, 256  # as in the source


class Call(ctypes.Structure):
    """The struct of the same name in paged_attention.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k_cache", "v_cache", "out")),
        *((name, ctypes.c_void_p) for name in ("page_table", "rows", "q_starts", "kv_lens")),
        *((name, ctypes.c_longlong) for name in ("q_stride", "k_stride", "v_stride")),
        *((name, ctypes.c_longlong) for name in ("row_stride", "column_stride")),
        *((name, ctypes.c_int) for name in ("num_reqs", "num_heads", "group", "head_dim", "window")),
        ("scale", ctypes.c_float),
    )


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
    check(Arguments(q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, sliding_window))
    if q.dtype not in TYPES or q.shape[2] > MOST_WIDTH:
        return torch_kernel.paged_attention(
            q, k_cache, v_cache, page_table, rows, q_starts, kv_lens, scale, sliding_window
        )
    q, rows, q_starts, kv_lens = (
        as_contiguous_rows(q),
        rows.contiguous(),
        q_starts.contiguous(),
        kv_lens.contiguous(),
    )
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    pointers = (q, k_cache, v_cache, out, page_table, rows, q_starts, kv_lens)
    call = Call(
        *(tensor.data_ptr() for tensor in pointers),
        q.stride(0),
        k_cache.stride(0),
        v_cache.stride(0),
        *page_table.stride(),
        rows.shape[0],
        q.shape[1],
        q.shape[1] // k_cache.shape[1],
        q.shape[2],
        sliding_window or 0,
        scale,
    )
    entry = f"minisgl_{'decode' if is_decode(q_starts, q.shape[0]) else 'extend'}_{TYPES[q.dtype]}"
    launch("paged_attention", entry, (q.shape[0], q.shape[1]), THREADS, [call], q.device)
    return out


def is_decode(q_starts: Tensor, num_tokens: int) -> bool:
    """Whether every request brings one query token."""
    if q_starts.shape[0] != num_tokens + 1:
        return False
    return not can_read(q_starts) or q_starts.tolist() == list(range(num_tokens + 1))
