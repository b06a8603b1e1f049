"""embedding in Triton: one program per token. Definition: reference.py"""

from __future__ import annotations

from torch import Tensor

from minisgl_kernels.embedding.reference import check
from minisgl_kernels.gather_kv.triton_kernel import gather_rows
from minisgl_kernels.triton_calls import as_bits, block_of


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Take the rows of weight that ids name (see reference.py)."""
    check(ids, weight)
    num_tokens, row_size = ids.shape[0], weight.shape[1]
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    out = weight.new_empty((num_tokens, row_size))
    if num_tokens and row_size:
        gather_rows[(num_tokens,)](
            as_bits(weight),
            weight.stride(0),
            ids.contiguous(),
            as_bits(out),
            row_size,
            BLOCK=block_of(row_size),
        )
    return out
