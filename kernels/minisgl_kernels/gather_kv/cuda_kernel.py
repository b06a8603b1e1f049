"""gather_kv in CUDA C++: one warp per token. Definition: reference.py. Source: gather_kv.cu"""

from __future__ import annotations

from ctypes import c_longlong

from torch import Tensor

from minisgl_kernels.cuda_build import address, launch
from minisgl_kernels.gather_kv.reference import check

THREADS, TOKENS = 256, 8  # of a block


def gather_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Read K and V of slots into new tensors (see reference.py)."""
    check(k_cache, v_cache, slots)
    slots = slots.contiguous()
    k, v = (cache.new_empty((slots.shape[0], *cache.shape[1:])) for cache in (k_cache, v_cache))
    size = k.element_size()
    arguments = [
        address(k_cache),
        c_longlong(k_cache.stride(0) * size),
        address(v_cache),
        c_longlong(v_cache.stride(0) * size),
        address(slots),
        c_longlong(slots.shape[0]),
        address(k),
        address(v),
        c_longlong(k.shape[1] * k.shape[2] * size),
    ]
    grid = (-(-slots.shape[0] // TOKENS), 1)
    launch("gather_kv", "minisgl_gather_kv", grid, THREADS, arguments, k_cache.device)
    return k, v
