"""rms_norm and add_rms_norm in C. Definition: reference.py. Source: rms_norm.c"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.build import load
from minisgl_kernels.c_calls import TYPES, computes, num_threads, pointer
from minisgl_kernels.contract import check_on_cpu
from minisgl_kernels.rms_norm import reference


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to a root mean square of 1, then by weight (see reference.py)."""
    reference.check(x, weight, eps)
    check_on_cpu("rms_norm", x)
    if not computes(x):
        return reference.rms_norm(x, weight, eps)
    return _run(x, None, weight, eps, None)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add, then normalise: (normed, sum) (see reference.py)."""
    reference.check_with_residual(x, residual, weight, eps)
    check_on_cpu("add_rms_norm", x)
    if not computes(x):
        return reference.add_rms_norm(x, residual, weight, eps)
    total = torch.empty(x.shape, dtype=x.dtype)
    return _run(x, residual, weight, eps, total), total


def _run(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, total: Tensor | None) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    residual = None if residual is None else residual.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    library = load("rms_norm")
    library.lib.minisgl_rms_norm(
        pointer(library, "char *", x),
        pointer(library, "char *", residual),
        x.shape[:-1].numel(),
        x.shape[-1],
        pointer(library, "char *", weight),
        eps,
        TYPES[x.dtype],
        pointer(library, "char *", total),
        pointer(library, "char *", out),
        num_threads(x.numel()),
    )
    return out
