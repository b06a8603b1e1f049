"""What the wrappers of the arithmetic kernels in C share: element types, pointers and how many threads.

C computes in float32 and bfloat16; a wrapper passes other types to the torch backend. Kernels run on as many
threads as `torch.set_num_threads` says (the engine's `num_threads`), the caller among them (`pool.c`); small
work stays on the calling thread, where it is done sooner.
Chapter: kernels/README.md
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minisgl_kernels.build import Library

TYPES = {torch.float32: 0, torch.bfloat16: 1}  # as vectors.h numbers them
SMALL_WORK = 1 << 18  # multiplications or elements that take about as long as it takes to wake a thread


def computes(*tensors: Tensor) -> bool:
    """Whether C has arithmetic for these tensors' type."""
    return all(tensor.dtype in TYPES for tensor in tensors)


def num_threads(work: int) -> int:
    """How many threads some work is worth."""
    return torch.get_num_threads() if work > SMALL_WORK else 1


def pointer(library: Library, kind: str, tensor: Tensor | None) -> Any:
    """A tensor's memory as a C pointer, NULL for None."""
    if tensor is None:
        return library.ffi.NULL
    return library.ffi.cast(kind, tensor.data_ptr())
