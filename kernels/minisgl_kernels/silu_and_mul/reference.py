"""silu_and_mul: out = gate / (1 + exp(-gate)) * up, element by element.

gate, up  [..., width] F, may be strided
out       as gate, new and contiguous; no argument is changed
Arithmetic in float64, one rounding to F at the end. `error_bound` is for a backend that computes to u
(2**-24 in float32), exp within 2 units: gamma(6, u) * |out|, for nothing here cancels, and the smallest
normal number where exp underflows; then the rounding to F. Moves 3 * elements.
Elements are independent, bitwise equal alone or in a batch.
Versions: silu_and_mul.c (16 elements at a time). Run: pytest tests/kernels -k silu_and_mul
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.contract import Contract, gamma, unit_roundoff

CONTRACT = Contract("silu_and_mul", gate="[..., width] F", up="[..., width] F")


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Multiply up by the gated activation of gate.

    Raises: ContractError for a shape, dtype or device.
    """
    CONTRACT.check(gate, up)
    wide = gate.contiguous().double()
    return (wide / (1 + torch.exp(-wide)) * up.double()).to(gate.dtype)


def error_bound(gate: Tensor, up: Tensor, u: float) -> Tensor:
    """Bound, per element, what a backend that computes to u may differ from this definition."""
    exact = silu_and_mul(gate.double(), up.double()).abs()
    smallest = torch.finfo(torch.float32).tiny * (1 + up.double().abs())
    return exact * (gamma(6, u) + 2 * unit_roundoff(gate.dtype)) + smallest
