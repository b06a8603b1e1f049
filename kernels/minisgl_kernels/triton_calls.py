"""What the Triton kernels share: whether they run in the interpreter, block sizes, and the element's bits.

On a machine without a CUDA device Triton runs them in its interpreter if `TRITON_INTERPRET=1` is set before
they are imported: the same source, far slower, on tensors of the CPU. There bfloat16 products read raw bits,
so operands become float32 first, under a constant that only the interpreter sets.
Blocks depend on shapes of the model alone, never on the number of rows, so a row's bits do not either.
Chapter: kernels/README.md
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
TYPES = (torch.float16, torch.bfloat16, torch.float32)  # arithmetic in float32; others are torch's
ROUNDS_DOWN = tl.constexpr(INTERPRETED)  # the interpreter cuts bfloat16 off instead of rounding to nearest
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def narrow(value, element: tl.constexpr):
    """float32 rounded to the nearest number of an element type, ties to even."""
    if ROUNDS_DOWN and element == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        value = tl.where(value == value, rounded.to(tl.float32, bitcast=True), value)
    return value.to(element)


def as_bits(tensor: Tensor) -> Tensor:
    """The same memory as integers of the element's size: a copy of bits keeps every NaN."""
    return tensor.view(BITS[tensor.element_size()])


def block_of(size: int, least: int = 1) -> int:
    """The power of two that holds `size` elements."""
    return max(least, 1 << max(size - 1, 0).bit_length())


def computes(*tensors: Tensor) -> bool:
    """Whether these kernels have arithmetic for the tensors' type."""
    return all(tensor.dtype in TYPES for tensor in tensors)
