"""embedding in C: ids are checked in C before the first byte is written.

When C refuses, the reference's check says why in words. Definition: reference.py. Source: embedding.c
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.build import load
from minisgl_kernels.c_calls import pointer
from minisgl_kernels.contract import check_on_cpu
from minisgl_kernels.embedding.reference import CONTRACT, check

DONE = -1


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Take the rows of weight that ids name (see reference.py)."""
    CONTRACT.check(ids, weight)
    check_on_cpu("embedding", ids)
    rows = weight if weight.stride(1) == 1 else weight.contiguous()
    wide, size = ids.long().contiguous(), weight.element_size()
    out = torch.empty((ids.shape[0], weight.shape[1]), dtype=weight.dtype)
    library = load("embedding")
    outcome = library.lib.minisgl_embedding(
        pointer(library, "int64_t *", wide),
        ids.shape[0],
        pointer(library, "char *", rows),
        rows.stride(0) * size,
        weight.shape[0],
        weight.shape[1] * size,
        pointer(library, "char *", out),
    )
    if outcome != DONE:
        check(ids, weight)
    return out
