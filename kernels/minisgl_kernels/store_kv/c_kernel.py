"""store_kv in C: shapes are checked here, slots and overlaps in C before the first byte is written.

When C refuses, the reference's check says why in words. Definition: reference.py. Source: store_kv.c
"""

from __future__ import annotations

from torch import Tensor

from minisgl_kernels.build import load
from minisgl_kernels.contract import as_contiguous_rows, check_cache_layout, check_on_cpu
from minisgl_kernels.store_kv.reference import CONTRACT, check

DONE = -1


def store_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write K and V of tokens into their slots (see reference.py)."""
    CONTRACT.check(k_cache, v_cache, slots, k, v)
    check_on_cpu("store_kv", k_cache)
    check_cache_layout("store_kv", k_cache, v_cache)
    k, v, slots = as_contiguous_rows(k), as_contiguous_rows(v), slots.contiguous()
    library = load("store_kv")
    cast = library.ffi.cast
    num_slots, num_kv_heads, head_dim = k_cache.shape
    size = k_cache.element_size()
    outcome = library.lib.minisgl_store_kv(
        cast("char *", k_cache.data_ptr()),
        k_cache.stride(0) * size,
        cast("char *", v_cache.data_ptr()),
        v_cache.stride(0) * size,
        num_slots,
        cast("int32_t *", slots.data_ptr()),
        slots.shape[0],
        cast("char *", k.data_ptr()),
        k.stride(0) * size,
        cast("char *", v.data_ptr()),
        v.stride(0) * size,
        num_kv_heads * head_dim * size,
    )
    if outcome != DONE:
        check(k_cache, v_cache, slots, k, v)
