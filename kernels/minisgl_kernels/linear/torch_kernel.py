"""linear for serving: the product in float32, always in blocks of 16 rows.

A library's product over m rows rounds differently for different m. Here every product has the same
shape: rows are copied into blocks of 16, the last one filled with zeros, so a row's bits depend neither
on the rows beside it nor on their number. That the place within a block does not matter either is the
library's property: tests/kernels checks it. On two cores 16 rows take 4 times as long as one, 128 rows
in blocks of 16 take 1.6 times what one product does. Half-precision weights are widened at each call:
right, but not fast.
Definition: reference.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.contract import compute_dtype
from minisgl_kernels.linear.reference import check

ROWS_PER_BLOCK = 16


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply each row by the weight's transpose and add the bias (see reference.py)."""
    check(x, weight, bias)
    dtype = compute_dtype(x.dtype)
    out_features, in_features = weight.shape
    num_rows = x.numel() // in_features if in_features else x.shape[:-1].numel()
    padded_rows = -(-num_rows // ROWS_PER_BLOCK) * ROWS_PER_BLOCK
    rows = torch.zeros((padded_rows, in_features), dtype=dtype, device=x.device)
    rows[:num_rows] = x.reshape(num_rows, in_features)
    out = torch.empty((padded_rows, out_features), dtype=dtype, device=x.device)
    transposed = weight.to(dtype).T
    for start in range(0, padded_rows, ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        torch.mm(rows[block], transposed, out=out[block])
    out = out[:num_rows]
    if bias is not None:
        out += bias.to(dtype)
    return out.to(x.dtype).reshape(*x.shape[:-1], out_features)
