"""The backend `c`: every operation compiled from C for this CPU, in float32 and bfloat16.

float16 and float64 are computed by the torch backend, copies move any type. `backends.get` compiles and loads
the C first, or says why it cannot; importing this compiles nothing.
Chapter: kernels/README.md
"""

from minisgl_kernels.compare_key.c_kernel import compare_key
from minisgl_kernels.embedding.c_kernel import embedding
from minisgl_kernels.gather_kv.c_kernel import gather_kv
from minisgl_kernels.linear.c_kernel import linear
from minisgl_kernels.page_table.c_kernel import read_page_table, write_page_table
from minisgl_kernels.paged_attention.c_kernel import paged_attention
from minisgl_kernels.rms_norm.c_kernel import add_rms_norm, rms_norm
from minisgl_kernels.rope.c_kernel import rope
from minisgl_kernels.sample.c_kernel import sample
from minisgl_kernels.silu_and_mul.c_kernel import silu_and_mul
from minisgl_kernels.store_kv.c_kernel import store_kv

name = "c"

__all__ = [
    "name",
    "compare_key",
    "store_kv",
    "gather_kv",
    "write_page_table",
    "read_page_table",
    "paged_attention",
    "rms_norm",
    "add_rms_norm",
    "rope",
    "silu_and_mul",
    "linear",
    "embedding",
    "sample",
]
