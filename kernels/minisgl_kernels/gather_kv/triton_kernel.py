"""gather_kv in Triton: one program per token and cache. Definition: reference.py"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from minisgl_kernels.gather_kv.reference import check
from minisgl_kernels.triton_calls import as_bits, block_of


@triton.jit
def gather_rows(cache, cache_stride, slots, rows, row_size, BLOCK: tl.constexpr):
    """rows[i] = cache[slots[i]], contiguous rows of row_size elements."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    at = tl.arange(0, BLOCK)
    row = tl.load(cache + slot * cache_stride + at, mask=at < row_size)
    tl.store(rows + token * row_size + at, row, mask=at < row_size)


def gather_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Read K and V of slots into new tensors (see reference.py)."""
    check(k_cache, v_cache, slots)
    num_tokens, row_size = slots.shape[0], k_cache.shape[1] * k_cache.shape[2]
    slots = slots.contiguous()
    k, v = (cache.new_empty((num_tokens, *cache.shape[1:])) for cache in (k_cache, v_cache))
    for cache, rows in ((k_cache, k), (v_cache, v)):
        if num_tokens and row_size:
            gather_rows[(num_tokens,)](
                as_bits(cache), cache.stride(0), slots, as_bits(rows), row_size, BLOCK=block_of(row_size)
            )
    return k, v
