"""linear for serving: the product in float32, always in blocks of 16 rows.

A library's product over m rows rounds differently for different m. Here every product has the same
shape: rows are copied into blocks of 16, the last one filled with zeros, so a row's bits depend neither
on the rows beside it nor on their number. That the place within a block does not matter either is the
library's property: tests/kernels checks it (MKL breaks it for fewer than ten outputs and an odd number of
inputs, so both are filled up to multiples of 16, which no real model needs). On two cores 16 rows take 4
times as long as one, 128 rows in blocks of 16 take 1.6 times what one product does. Half-precision
weights are widened at each call: right, but not fast.
Definition: reference.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.contract import compute_dtype
from minisgl_kernels.linear.reference import check

BLOCK = 16  # rows of one product; inputs and outputs are filled up to a multiple of it


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply each row by the weight's transpose and add the bias (see reference.py)."""
    check(x, weight, bias)
    dtype = compute_dtype(x.dtype)
    out_features, in_features = weight.shape
    num_rows = x.shape[:-1].numel()
    wide = _filled_up(weight.to(dtype))
    rows = _padded(x.reshape(num_rows, in_features), dtype)
    out = torch.empty((rows.shape[0], wide.shape[0]), dtype=dtype, device=x.device)
    for start in range(0, rows.shape[0], BLOCK):
        block = slice(start, start + BLOCK)
        torch.mm(rows[block], wide.T, out=out[block])
    out = out[:num_rows, :out_features]
    if bias is not None:
        out += bias.to(dtype)
    return out.to(x.dtype).reshape(*x.shape[:-1], out_features)


def _filled_up(weight: Tensor) -> Tensor:
    """The weight itself if both its sizes are multiples of a block, as they mostly are."""
    return _padded(weight, weight.dtype) if weight.shape[0] % BLOCK or weight.shape[1] % BLOCK else weight


def _padded(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy with zeros after the last row and column, up to whole blocks."""
    num_rows, num_columns = matrix.shape
    shape = (-(-num_rows // BLOCK) * BLOCK, -(-num_columns // BLOCK) * BLOCK)
    padded = torch.zeros(shape, dtype=dtype, device=matrix.device)
    padded[:num_rows, :num_columns] = matrix
    return padded
