"""Tensors that are not contiguous: what lies between their elements is poison."""

from __future__ import annotations

import torch
from torch import Tensor


def apart(tensor: Tensor, dim: int = -1, poison: float = float("nan")) -> Tensor:
    """The same values, with as many others among them along one axis."""
    return torch.stack([tensor, torch.full_like(tensor, poison)], dim=dim).select(dim, 0)
