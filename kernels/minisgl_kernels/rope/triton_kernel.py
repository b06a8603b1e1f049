"""rope in Triton: one program per token and head; angles, cosines and sines in float64.

Definition: reference.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minisgl_kernels.contract import as_contiguous_rows
from minisgl_kernels.rope import reference
from minisgl_kernels.triton_calls import block_of, computes, narrow


@triton.jit
def _rope(x, row_stride, num_heads, positions, inv_freq, scaling, out, num_pairs, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < num_pairs
    angle = tl.load(positions + token).to(tl.float64) * tl.load(inv_freq + at, mask=inside, other=0)
    cosine = (tl.cos(angle) * tl.load(scaling)).to(tl.float32)
    sine = (tl.sin(angle) * tl.load(scaling)).to(tl.float32)
    low = x + token * row_stride + head * 2 * num_pairs + at
    a = tl.load(low, mask=inside, other=0).to(tl.float32)
    b = tl.load(low + num_pairs, mask=inside, other=0).to(tl.float32)
    to = out + (token * num_heads + head) * 2 * num_pairs + at
    tl.store(to, narrow((a * cosine - b * sine), out.dtype.element_ty), mask=inside)
    tl.store(to + num_pairs, narrow((b * cosine + a * sine), out.dtype.element_ty), mask=inside)


def rope(
    q: Tensor, k: Tensor, positions: Tensor, inv_freq: Tensor, attention_scaling: float
) -> tuple[Tensor, Tensor]:
    """Rotate the pairs of q and k by their absolute position (see reference.py)."""
    reference.check(q, k, positions, inv_freq)
    if not computes(q):
        return reference.rope(q, k, positions, inv_freq, attention_scaling)
    frequencies, places = inv_freq.double().contiguous(), positions.contiguous()
    scaling = torch.tensor([attention_scaling], dtype=torch.float64, device=q.device)
    return _turn(q, places, frequencies, scaling), _turn(k, places, frequencies, scaling)


def _turn(x: Tensor, positions: Tensor, inv_freq: Tensor, scaling: Tensor) -> Tensor:
    out, x = torch.empty(x.shape, dtype=x.dtype, device=x.device), as_contiguous_rows(x)
    num_tokens, num_heads, head_dim = x.shape
    if x.numel():
        _rope[(num_tokens, num_heads)](
            x,
            x.stride(0),
            num_heads,
            positions,
            inv_freq,
            scaling,
            out,
            head_dim // 2,
            BLOCK=block_of(head_dim // 2),
        )
    return out
