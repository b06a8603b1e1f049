"""rms_norm: out[..., i] = weight[i] * x[..., i] / sqrt(mean_j x[..., j] ** 2 + eps).

x       [..., hidden_size] F, may be strided
weight  [hidden_size] F; eps > 0
out     as x, new; no argument is changed
Arithmetic in float64, one rounding to F at the end. `error_bound` is for a backend that accumulates to u
(2**-24 in float32): the sum of hidden_size squares has no cancellation, so its relative error is
gamma(hidden_size, u), half of that after the root, and five more roundings. Moves 2 * elements.
Rows are independent, bitwise equal alone or in a batch: the sum's order depends on hidden_size only.
add_rms_norm: sum = x + residual, rounded to F, and rms_norm of that sum; both are returned. The sum is exact
to that rounding, so it has the bits of `x + residual`, and the bound is rms_norm's, of the sum.
Versions: rms_norm.c (16 lanes). Run: pytest tests/kernels -k rms_norm
"""

from __future__ import annotations

from torch import Tensor

from minisgl_kernels.contract import Contract, gamma, unit_roundoff
from minisgl_spec.errors import ContractError

CONTRACT = Contract("rms_norm", x="[..., hidden_size] F", weight="[hidden_size] F")
WITH_RESIDUAL = Contract(
    "add_rms_norm",
    x="[..., hidden_size] F",
    residual="[..., hidden_size] F",
    weight="[hidden_size] F",
)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to a root mean square of 1, then by weight.

    Raises: ContractError for a shape, dtype or device, and unless eps > 0.
    """
    check(x, weight, eps)
    wide = x.contiguous().double()
    mean_square = (wide * wide).mean(dim=-1, keepdim=True)
    return (weight.double() * (wide / (mean_square + eps).sqrt())).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add, then normalise.

    Returns:
        normed:  rms_norm of the sum.
        sum:     x + residual.

    Raises: ContractError for a shape, dtype or device, and unless eps > 0.
    """
    check_with_residual(x, residual, weight, eps)
    total = (x.double() + residual.double()).to(x.dtype)
    return rms_norm(total, weight, eps), total


def error_bound(x: Tensor, weight: Tensor, eps: float, u: float) -> Tensor:
    """Bound, per element, what a backend that accumulates to u may differ from this definition."""
    exact = rms_norm(x.double(), weight.double(), eps).abs()
    return exact * (gamma(x.shape[-1], u) / 2 + gamma(5, u) + 2 * unit_roundoff(x.dtype))


def check(x: Tensor, weight: Tensor, eps: float) -> None:
    """Refuse arguments for which rms_norm is not defined."""
    CONTRACT.check(x, weight)
    _check_epsilon("rms_norm", eps)


def check_with_residual(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """Refuse arguments for which add_rms_norm is not defined."""
    WITH_RESIDUAL.check(x, residual, weight)
    _check_epsilon("add_rms_norm", eps)


def _check_epsilon(operation: str, eps: float) -> None:
    if not eps > 0:
        raise ContractError(operation, "eps > 0", {"eps": eps}, "A row of zeros would divide by zero.")
