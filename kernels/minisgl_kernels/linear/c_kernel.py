"""linear in C: weights are packed in panels of 32 outputs the first time they are used.

The packed copy is found again by the weight's tensor, its address and its version: a weight written through
torch is packed anew, and the copy goes when the weight does. A weight that something else than torch writes
to (a numpy view) must not have been used before. Definition: reference.py. Source: linear.c
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from minisgl_kernels.build import load
from minisgl_kernels.c_calls import TYPES, computes, num_threads, pointer
from minisgl_kernels.contract import check_on_cpu
from minisgl_kernels.linear import torch_kernel
from minisgl_kernels.linear.reference import check


@dataclass(frozen=True)
class PackedWeight:
    """A weight in panels, and which state of the weight it is a copy of."""

    address: int
    version: int
    panels: Tensor


_PACKED = WeakTensorKeyDictionary()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply each row by the weight's transpose and add the bias (see reference.py)."""
    check(x, weight, bias)
    check_on_cpu("linear", x)
    if not computes(x):
        return torch_kernel.linear(x, weight, bias)
    library = load("linear")
    out_features, in_features = weight.shape
    rows = x.reshape(-1, in_features).to(torch.float32).contiguous()
    added = None if bias is None else bias.to(torch.float32).contiguous()
    num_rows = x.shape[:-1].numel()
    out = torch.empty((*x.shape[:-1], out_features), dtype=x.dtype)
    library.lib.minisgl_linear(
        pointer(library, "float *", rows),
        num_rows,
        pointer(library, "char *", packed(weight)),
        out_features,
        in_features,
        TYPES[x.dtype],
        pointer(library, "float *", added),
        pointer(library, "char *", out),
        num_threads(num_rows * weight.numel()),
    )
    return out


def packed(weight: Tensor) -> Tensor:
    """The panels of a weight, as it is now."""
    known: PackedWeight | None = _PACKED.get(weight)
    address, version = weight.data_ptr(), 0 if weight.is_inference() else weight._version
    if known is None or (known.address, known.version) != (address, version):
        known = PackedWeight(address, version, _pack(weight))
        _PACKED[weight] = known
    return known.panels


def _pack(weight: Tensor) -> Tensor:
    library = load("linear")
    out_features, in_features = weight.shape
    rows = weight if weight.stride(1) == 1 or in_features == 1 else weight.contiguous()
    kind = TYPES[weight.dtype]
    size = library.lib.minisgl_linear_packed_bytes(out_features, in_features, kind)
    panels = torch.empty(size, dtype=torch.uint8)
    library.lib.minisgl_linear_pack(
        pointer(library, "char *", rows),
        rows.stride(0),
        out_features,
        in_features,
        kind,
        pointer(library, "char *", panels),
        num_threads(weight.numel()),
    )
    return panels
