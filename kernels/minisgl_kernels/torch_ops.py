"""The backend `torch`: every operation in torch, on any device; fast enough to serve a small model.

Where `torch_kernel.py` is taken, the definition in `reference.py` is too slow; each says what it
changes. Everything else is the definition itself.
Chapter: kernels/README.md
"""

from minisgl_kernels.compare_key.torch_kernel import compare_key
from minisgl_kernels.embedding.reference import embedding
from minisgl_kernels.gather_kv.reference import gather_kv
from minisgl_kernels.linear.torch_kernel import linear
from minisgl_kernels.page_table.reference import read_page_table, write_page_table
from minisgl_kernels.paged_attention.torch_kernel import paged_attention
from minisgl_kernels.rms_norm.reference import add_rms_norm, rms_norm
from minisgl_kernels.rope.reference import rope
from minisgl_kernels.sample.reference import sample
from minisgl_kernels.silu_and_mul.reference import silu_and_mul
from minisgl_kernels.store_kv.reference import store_kv

name = "torch"

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
