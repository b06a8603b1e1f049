"""rms_norm and add_rms_norm in Triton: one program per row, the whole row in one block.

Definition: reference.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minisgl_kernels.rms_norm import reference
from minisgl_kernels.triton_calls import block_of, computes, narrow


@triton.jit
def _norm(x, residual, weight, eps, total, out, size, ADD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < size
    place = tl.program_id(0).to(tl.int64) * size + at
    value = tl.load(x + place, mask=inside, other=0).to(tl.float32)
    if ADD:
        value += tl.load(residual + place, mask=inside, other=0).to(tl.float32)
        rounded = narrow(value, total.dtype.element_ty)
        tl.store(total + place, rounded, mask=inside)
        value = rounded.to(tl.float32)
    root = tl.sqrt(tl.sum(value * value, axis=0) / size + eps)
    scaled = tl.load(weight + at, mask=inside, other=0).to(tl.float32) * (value / root)
    tl.store(out + place, narrow(scaled, out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to a root mean square of 1, then by weight (see reference.py)."""
    reference.check(x, weight, eps)
    if not computes(x):
        return reference.rms_norm(x, weight, eps)
    x = x.contiguous()
    return _run(x, x, weight, eps, x, add=False)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add, then normalise: (normed, sum) (see reference.py)."""
    reference.check_with_residual(x, residual, weight, eps)
    if not computes(x):
        return reference.add_rms_norm(x, residual, weight, eps)
    x = x.contiguous()
    total = torch.empty_like(x)
    return _run(x, residual.contiguous(), weight, eps, total, add=True), total


def _run(x: Tensor, residual: Tensor, weight: Tensor, eps: float, total: Tensor, *, add: bool) -> Tensor:
    out, size = torch.empty_like(x), x.shape[-1]
    if x.numel():
        rows = x.shape[:-1].numel()
        weight = weight.contiguous()
        _norm[(rows,)](x, residual, weight, eps, total, out, size, ADD=add, BLOCK=block_of(size))
    return out
