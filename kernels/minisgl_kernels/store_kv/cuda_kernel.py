"""store_kv in CUDA C++: one warp per token. Definition: reference.py. Source: store_kv.cu"""

from __future__ import annotations

from ctypes import c_longlong

from torch import Tensor

from minisgl_kernels.contract import as_contiguous_rows
from minisgl_kernels.cuda_build import address, launch
from minisgl_kernels.store_kv.reference import check

THREADS, TOKENS = 256, 8  # of a block


def store_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write K and V of tokens into their slots (see reference.py)."""
    check(k_cache, v_cache, slots, k, v)
    k, v, slots = as_contiguous_rows(k), as_contiguous_rows(v), slots.contiguous()
    size, num_tokens = k.element_size(), k.shape[0]
    arguments = [
        address(k_cache),
        c_longlong(k_cache.stride(0) * size),
        address(v_cache),
        c_longlong(v_cache.stride(0) * size),
        address(slots),
        c_longlong(num_tokens),
        address(k),
        c_longlong(k.stride(0) * size),
        address(v),
        c_longlong(v.stride(0) * size),
        c_longlong(k.shape[1] * k.shape[2] * size),
    ]
    grid = (-(-num_tokens // TOKENS), 1)
    launch("store_kv", "minisgl_store_kv", grid, THREADS, arguments, k_cache.device)
