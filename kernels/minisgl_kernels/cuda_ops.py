"""The backend `cuda`: copies, page table and attention in CUDA C++, the rest as in the backend `triton`.

`backends.get` compiles the CUDA C++ for this device, or says why it cannot; importing this compiles nothing.
Chapter: kernels/README.md
"""

from minisgl_kernels.compare_key.torch_kernel import compare_key
from minisgl_kernels.embedding.triton_kernel import embedding
from minisgl_kernels.gather_kv.cuda_kernel import gather_kv
from minisgl_kernels.linear.triton_kernel import linear
from minisgl_kernels.page_table.cuda_kernel import read_page_table, write_page_table
from minisgl_kernels.paged_attention.cuda_kernel import paged_attention
from minisgl_kernels.rms_norm.triton_kernel import add_rms_norm, rms_norm
from minisgl_kernels.rope.triton_kernel import rope
from minisgl_kernels.sample.triton_kernel import sample
from minisgl_kernels.silu_and_mul.triton_kernel import silu_and_mul
from minisgl_kernels.store_kv.cuda_kernel import store_kv

name = "cuda"

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
