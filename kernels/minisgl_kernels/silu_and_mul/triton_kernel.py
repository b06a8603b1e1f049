"""silu_and_mul in Triton: 1,024 elements of one row per program. Definition: reference.py"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minisgl_kernels.silu_and_mul import reference
from minisgl_kernels.triton_calls import computes, narrow

BLOCK = 1024


@triton.jit
def _silu_and_mul(gate, gate_stride, up, up_stride, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(gate + row * gate_stride + at, mask=inside, other=0).to(tl.float32)
    y = tl.load(up + row * up_stride + at, mask=inside, other=0).to(tl.float32)
    small = tl.exp(-tl.abs(x))  # cannot overflow
    gated = x * (tl.where(x > 0, 1.0, small) / (1.0 + small))
    tl.store(out + row * width + at, narrow((gated * y), out.dtype.element_ty), mask=inside)


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Multiply up by the gated activation of gate (see reference.py)."""
    reference.CONTRACT.check(gate, up)
    if not computes(gate):
        return reference.silu_and_mul(gate, up)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if out.numel():
        width = gate.shape[-1]
        gate, up = (_as_rows(tensor) for tensor in (gate, up))
        grid = (gate.shape[0], triton.cdiv(width, BLOCK))
        _silu_and_mul[grid](gate, gate.stride(0), up, up.stride(0), out, width, BLOCK=BLOCK)
    return out


def _as_rows(tensor: Tensor) -> Tensor:
    if tensor.dim() == 2 and tensor.stride(1) == 1:
        return tensor
    return tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1]).contiguous()
