"""rope in C. Definition: reference.py. Source: rope.c"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.build import load
from minisgl_kernels.c_calls import TYPES, computes, num_threads, pointer
from minisgl_kernels.contract import as_contiguous_rows, check_on_cpu
from minisgl_kernels.rope import reference

SINE_WORK = 32  # what a cosine and its sine cost, in multiplications


def rope(
    q: Tensor, k: Tensor, positions: Tensor, inv_freq: Tensor, attention_scaling: float
) -> tuple[Tensor, Tensor]:
    """Rotate the pairs of q and k by their absolute position (see reference.py)."""
    reference.check(q, k, positions, inv_freq)
    check_on_cpu("rope", q)
    if not computes(q):
        return reference.rope(q, k, positions, inv_freq, attention_scaling)
    q_out, k_out = torch.empty(q.shape, dtype=q.dtype), torch.empty(k.shape, dtype=k.dtype)
    q, k = as_contiguous_rows(q), as_contiguous_rows(k)
    positions, inv_freq = positions.long().contiguous(), inv_freq.double().contiguous()
    library = load("rope")
    failed = library.lib.minisgl_rope(
        pointer(library, "char *", q),
        q.stride(0),
        pointer(library, "char *", k),
        k.stride(0),
        q.shape[0],
        q.shape[1],
        k.shape[1],
        q.shape[2],
        pointer(library, "int64_t *", positions),
        pointer(library, "double *", inv_freq),
        attention_scaling,
        TYPES[q.dtype],
        pointer(library, "char *", q_out),
        pointer(library, "char *", k_out),
        num_threads(q.numel() + k.numel() + SINE_WORK * positions.numel() * inv_freq.numel()),
    )
    if failed:
        raise MemoryError(f"rope: no memory for the angles of {inv_freq.shape[0]} pairs")
    return q_out, k_out
