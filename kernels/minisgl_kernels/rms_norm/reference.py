"""rms_norm: out[..., i] = weight[i] * x[..., i] / sqrt(mean_j x[..., j] ** 2 + eps).

x       [..., hidden_size] F, may be strided
weight  [hidden_size] F; eps > 0
out     as x, new; no argument is changed
Arithmetic in float64, one rounding to F at the end. `error_bound` is for a backend that accumulates to u
(2**-24 in float32): the sum of hidden_size squares has no cancellation, so its relative error is
gamma(hidden_size, u), half of that after the root, and five more roundings. Moves 2 * elements.
Rows are independent, bitwise equal alone or in a batch: the sum's order depends on hidden_size only.
Versions: this one serves the torch backend. Run: pytest tests/kernels -k rms_norm
"""

from __future__ import annotations

from torch import Tensor

from minisgl_kernels.contract import Contract, gamma, unit_roundoff
from minisgl_spec.errors import ContractError

CONTRACT = Contract("rms_norm", x="[..., hidden_size] F", weight="[hidden_size] F")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to a root mean square of 1, then by weight.

    Raises: ContractError for a shape, dtype or device, and unless eps > 0.
    """
    CONTRACT.check(x, weight)
    if not eps > 0:
        raise ContractError("rms_norm", "eps > 0", {"eps": eps}, "A row of zeros would divide by zero.")
    wide = x.contiguous().double()
    mean_square = (wide * wide).mean(dim=-1, keepdim=True)
    return (weight.double() * (wide / (mean_square + eps).sqrt())).to(x.dtype)


def error_bound(x: Tensor, weight: Tensor, eps: float, u: float) -> Tensor:
    """Bound, per element, what a backend that accumulates to u may differ from this definition."""
    exact = rms_norm(x.double(), weight.double(), eps).abs()
    return exact * (gamma(x.shape[-1], u) / 2 + gamma(5, u) + 2 * unit_roundoff(x.dtype))
