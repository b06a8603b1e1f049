"""The backend `c`: the three copies compiled from C for this CPU, the torch backend for the rest.

`backends.get` compiles and loads the C first, or says why it cannot; importing this compiles nothing.
Chapter: kernels/README.md
"""

from minisgl_kernels.compare_key.c_kernel import compare_key
from minisgl_kernels.gather_kv.c_kernel import gather_kv
from minisgl_kernels.store_kv.c_kernel import store_kv
from minisgl_kernels.torch_ops import (
    embedding,
    linear,
    paged_attention,
    rms_norm,
    rope,
    sample,
    silu_and_mul,
)

name = "c"

__all__ = [
    "name",
    "compare_key",
    "store_kv",
    "gather_kv",
    "paged_attention",
    "rms_norm",
    "rope",
    "silu_and_mul",
    "linear",
    "embedding",
    "sample",
]
