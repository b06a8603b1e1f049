"""gather_kv in C: shapes are checked here, slots in C before the first byte is read.

When C refuses, the reference's check says why in words. Definition: reference.py. Source: gather_kv.c
"""

from __future__ import annotations

from torch import Tensor

from minisgl_kernels.build import load
from minisgl_kernels.contract import check_cache_layout, check_on_cpu
from minisgl_kernels.gather_kv.reference import CONTRACT, check

DONE = -1


def gather_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Read K and V of slots into new tensors (see reference.py)."""
    CONTRACT.check(k_cache, v_cache, slots)
    check_on_cpu("gather_kv", k_cache)
    check_cache_layout("gather_kv", k_cache, v_cache)
    slots = slots.contiguous()
    library = load("gather_kv")
    cast = library.ffi.cast
    num_tokens, num_slots, num_kv_heads, head_dim = slots.shape[0], *k_cache.shape
    size = k_cache.element_size()
    k = k_cache.new_empty((num_tokens, num_kv_heads, head_dim))
    v = k_cache.new_empty((num_tokens, num_kv_heads, head_dim))
    outcome = library.lib.minisgl_gather_kv(
        cast("char *", k_cache.data_ptr()),
        k_cache.stride(0) * size,
        cast("char *", v_cache.data_ptr()),
        v_cache.stride(0) * size,
        num_slots,
        cast("int32_t *", slots.data_ptr()),
        num_tokens,
        cast("char *", k.data_ptr()),
        cast("char *", v.data_ptr()),
        num_kv_heads * head_dim * size,
    )
    if outcome != DONE:
        check(k_cache, v_cache, slots)
    return k, v
