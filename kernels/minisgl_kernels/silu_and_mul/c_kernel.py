"""silu_and_mul in C. Definition: reference.py. Source: silu_and_mul.c"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.build import load
from minisgl_kernels.c_calls import TYPES, computes, num_threads, pointer
from minisgl_kernels.contract import check_on_cpu
from minisgl_kernels.silu_and_mul import reference


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Multiply up by the gated activation of gate (see reference.py)."""
    reference.CONTRACT.check(gate, up)
    check_on_cpu("silu_and_mul", gate)
    if not computes(gate):
        return reference.silu_and_mul(gate, up)
    out = torch.empty(gate.shape, dtype=gate.dtype)
    gate, up = _as_rows(gate), _as_rows(up)
    library = load("silu_and_mul")
    library.lib.minisgl_silu_and_mul(
        pointer(library, "char *", gate),
        gate.stride(0),
        pointer(library, "char *", up),
        up.stride(0),
        gate.shape[0],
        gate.shape[1],
        TYPES[gate.dtype],
        pointer(library, "char *", out),
        num_threads(gate.numel()),
    )
    return out


def _as_rows(tensor: Tensor) -> Tensor:
    """[rows, width] with contiguous rows; the halves of a wider matrix stay where they are."""
    if tensor.dim() != 2 or tensor.stride(1) != 1:
        tensor = tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1]).contiguous()
    return tensor
