"""linear in Triton: tiles of 16 rows and 128 outputs, sequential over blocks of 64 inputs.

The tile is the same for one row and for a thousand, so a row's sum has one order. Products of float32 are not
rounded to TF32. Definition: reference.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minisgl_kernels.linear import torch_kernel
from minisgl_kernels.linear.reference import check
from minisgl_kernels.triton_calls import INTERPRETED, computes, narrow

ROWS, OUTPUTS, INPUTS = 16, 128, 64


@triton.jit
def _linear(
    x,
    num_rows,
    weight,
    weight_stride,
    bias,
    out,
    num_outputs,
    num_inputs,
    BIAS: tl.constexpr,
    WIDEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    output = (tl.program_id(1).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS))[None, :]
    sums = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, num_inputs, INPUTS):
        column = start + tl.arange(0, INPUTS)
        left = tl.load(
            x + row * num_inputs + column[None, :],
            mask=(row < num_rows) & (column[None, :] < num_inputs),
            other=0,
        )
        right = tl.load(
            weight + output * weight_stride + column[:, None],
            mask=(output < num_outputs) & (column[:, None] < num_inputs),
            other=0,
        )
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        sums = tl.dot(left, right, sums, input_precision="ieee")
    if BIAS:
        sums += tl.load(bias + output, mask=output < num_outputs, other=0).to(tl.float32)
    inside = (row < num_rows) & (output < num_outputs)
    tl.store(out + row * num_outputs + output, narrow(sums, out.dtype.element_ty), mask=inside)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply each row by the weight's transpose and add the bias (see reference.py)."""
    check(x, weight, bias)
    if not computes(x):
        return torch_kernel.linear(x, weight, bias)
    num_outputs, num_inputs = weight.shape
    num_rows = x.shape[:-1].numel()
    out = torch.empty((*x.shape[:-1], num_outputs), dtype=x.dtype, device=x.device)
    if out.numel():
        rows = x.reshape(num_rows, num_inputs).contiguous()
        weight = weight if weight.stride(1) == 1 else weight.contiguous()
        _linear[(triton.cdiv(num_rows, ROWS), triton.cdiv(num_outputs, OUTPUTS))](
            rows,
            num_rows,
            weight,
            weight.stride(0),
            weight if bias is None else bias.contiguous(),
            out,
            num_outputs,
            num_inputs,
            BIAS=bias is not None,
            WIDEN=INTERPRETED,
            ROWS=ROWS,
            OUTPUTS=OUTPUTS,
            INPUTS=INPUTS,
        )
    return out
