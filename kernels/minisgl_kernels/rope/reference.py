"""rope: (x[i], x[i + d/2]) turned by a = position * inv_freq[i]: (x cos a - x' sin a, x' cos a + x sin a).

q, k       [num_tokens, num_heads, d] F and [num_tokens, num_kv_heads, d] F, may be strided
positions  [num_tokens] i32 or i64
inv_freq   [d / 2] f32 or f64, see parameters.py; cos and sin are multiplied by attention_scaling
out        as q and as k, new; no argument is changed. x' = x[i + d/2]
Arithmetic in float64 from the angle on, one rounding to F at the end. `error_bound` is for a backend that
rounds cos, sin, the two products and their sum to u (2**-24 in float32) but not the angle:
gamma(4, u) * (|x cos| + |x' sin|), then the rounding to F. Moves 2 * elements of q and k.
Rows are independent, bitwise equal alone or in a batch.
Versions: rope.c (one token at a time, angles in double). Run: pytest tests/kernels -k rope
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.contract import Contract, gamma, unit_roundoff
from minisgl_spec.errors import ContractError

CONTRACT = Contract(
    "rope",
    q="[num_tokens, num_heads, head_dim] F",
    k="[num_tokens, num_kv_heads, head_dim] F",
    positions="[num_tokens] int",
    inv_freq="[num_pairs] float",
)


def rope(
    q: Tensor, k: Tensor, positions: Tensor, inv_freq: Tensor, attention_scaling: float
) -> tuple[Tensor, Tensor]:
    """Rotate the pairs of q and k by their absolute position.

    Raises: ContractError for a shape, dtype or device, and if inv_freq is not half as long as head_dim.
    """
    check(q, k, positions, inv_freq)
    angles = positions.double()[:, None, None] * inv_freq.double()
    cos, sin = angles.cos() * attention_scaling, angles.sin() * attention_scaling
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def error_bound(x: Tensor, positions: Tensor, inv_freq: Tensor, attention_scaling: float, u: float) -> Tensor:
    """Bound, per element, what a backend that computes to u may differ from this definition, x = q or k."""
    angles = positions.double()[:, None, None] * inv_freq.double()
    cos, sin = (angles.cos() * attention_scaling).abs(), (angles.sin() * attention_scaling).abs()
    first, second = x.double().abs().chunk(2, dim=-1)
    size = torch.cat([first * cos + second * sin, second * cos + first * sin], dim=-1)
    return size * (gamma(4, u) + 2 * unit_roundoff(x.dtype))


def check(q: Tensor, k: Tensor, positions: Tensor, inv_freq: Tensor) -> None:
    """Refuse arguments for which rope is not defined."""
    CONTRACT.check(q, k, positions, inv_freq)
    if 2 * inv_freq.shape[0] != q.shape[2]:
        got = {"head_dim": q.shape[2], "num_pairs": inv_freq.shape[0]}
        raise ContractError("rope", "head_dim == 2 * num_pairs", got, "num_pairs is the length of inv_freq.")


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.double().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
