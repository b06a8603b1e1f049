"""store_kv in Triton: one program per token and cache. Definition: reference.py"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from minisgl_kernels.contract import as_contiguous_rows
from minisgl_kernels.store_kv.reference import check
from minisgl_kernels.triton_calls import as_bits, block_of


@triton.jit
def _store_rows(cache, cache_stride, slots, rows, row_stride, row_size, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    at = tl.arange(0, BLOCK)
    row = tl.load(rows + token * row_stride + at, mask=at < row_size)
    tl.store(cache + slot * cache_stride + at, row, mask=at < row_size)


def store_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write K and V of tokens into their slots (see reference.py)."""
    check(k_cache, v_cache, slots, k, v)
    num_tokens, row_size = k.shape[0], k.shape[1] * k.shape[2]
    if num_tokens == 0 or row_size == 0:
        return
    slots = slots.contiguous()
    for cache, rows in ((k_cache, as_contiguous_rows(k)), (v_cache, as_contiguous_rows(v))):
        _store_rows[(num_tokens,)](
            as_bits(cache),
            cache.stride(0),
            slots,
            as_bits(rows),
            rows.stride(0),
            row_size,
            BLOCK=block_of(row_size),
        )
