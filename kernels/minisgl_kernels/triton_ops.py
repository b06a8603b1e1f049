"""The backend `triton`: every operation that touches the device, in Triton, on CUDA or in the interpreter.

Keys are bytes of the host: `compare_key` is the torch backend's. float64 is computed by the torch backend.
Importing this imports triton; whether it interprets is decided there and then.
Chapter: kernels/README.md
"""

from minisgl_kernels.compare_key.torch_kernel import compare_key
from minisgl_kernels.embedding.triton_kernel import embedding
from minisgl_kernels.gather_kv.triton_kernel import gather_kv
from minisgl_kernels.linear.triton_kernel import linear
from minisgl_kernels.page_table.triton_kernel import read_page_table, write_page_table
from minisgl_kernels.paged_attention.triton_kernel import paged_attention
from minisgl_kernels.rms_norm.triton_kernel import add_rms_norm, rms_norm
from minisgl_kernels.rope.triton_kernel import rope
from minisgl_kernels.sample.triton_kernel import sample
from minisgl_kernels.silu_and_mul.triton_kernel import silu_and_mul
from minisgl_kernels.store_kv.triton_kernel import store_kv

name = "triton"

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
