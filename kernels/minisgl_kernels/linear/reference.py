"""linear: out[..., o] = sum_i x[..., i] * weight[o, i] (+ bias[o]).

x       [..., in_features] F, may be strided
weight  [out_features, in_features] F
bias    [out_features] F, or None
out     [..., out_features] F, new; no argument is changed
Arithmetic in float64, one rounding to F at the end. `error_bound` is for a backend that accumulates to u
(2**-24 in float32) in any order: gamma(in_features + 1, u) * (sum_i |x weight| + |bias|), then the
rounding to F. Moves in_features * out_features weights once per 16 rows.
The definition is the value; that a row's bits do not depend on its batch is each backend's own claim.
Versions: torch_kernel.py (float32, blocks of 16 rows), linear.c (panels of 32 outputs).
Run: pytest tests/kernels -k linear
"""

from __future__ import annotations

from torch import Tensor

from minisgl_kernels.contract import Contract, gamma, unit_roundoff

CONTRACT = Contract(
    "linear",
    x="[..., in_features] F",
    weight="[out_features, in_features] F",
)
WITH_BIAS = Contract(
    "linear",
    x="[..., in_features] F",
    weight="[out_features, in_features] F",
    bias="[out_features] F",
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply each row by the weight's transpose and add the bias.

    Raises: ContractError for a shape, dtype or device.
    """
    check(x, weight, bias)
    out = x.double() @ weight.double().T
    return (out if bias is None else out + bias.double()).to(x.dtype)


def error_bound(x: Tensor, weight: Tensor, bias: Tensor | None, u: float) -> Tensor:
    """Bound, per element, what a backend that accumulates to u may differ from this definition."""
    size = x.double().abs() @ weight.double().abs().T
    if bias is not None:
        size = size + bias.double().abs()
    return size * (gamma(x.shape[-1] + 1, u) + 2 * unit_roundoff(x.dtype))


def check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Refuse arguments for which linear is not defined."""
    if bias is None:
        CONTRACT.check(x, weight)
    else:
        WITH_BIAS.check(x, weight, bias)
