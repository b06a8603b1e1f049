"""Which backends this machine has, and in words why it lacks one.

A backend is an object with one function per operation; names and argument order are those of `Ops`.
`torch` runs everywhere torch does. `c` is the CPU's: every operation compiled from C. `triton`
is a GPU's, and runs in Triton's interpreter where `TRITON_INTERPRET=1` is set before it is first asked for.
`cuda` is CUDA C++ for the copies, the page table and attention, Triton for the rest.

This file never falls back: a backend that is asked for by name works or says why not.
Chapter: kernels/README.md
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Protocol, cast

from minisgl_kernels import build
from minisgl_spec.errors import BackendUnavailable, ContractError

if TYPE_CHECKING:
    from torch import Tensor

C_KERNELS = (
    "compare_key",
    "store_kv",
    "gather_kv",
    "page_table",
    "paged_attention",
    "rms_norm",
    "rope",
    "silu_and_mul",
    "linear",
    "embedding",
    "sample",
)
# name -> its module, and the kernels that are compiled for it
BACKENDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "torch": ("minisgl_kernels.torch_ops", ()),
    "c": ("minisgl_kernels.c_ops", C_KERNELS),
    "triton": ("minisgl_kernels.triton_ops", ()),
    "cuda": ("minisgl_kernels.cuda_ops", ()),
}


class Ops(Protocol):
    """The operations of one backend; each is defined by the `reference.py` of its folder."""

    @property
    def name(self) -> str:
        """The backend's name, as `get` takes it."""

    def compare_key(self, a: bytes, b: bytes, /) -> int:
        """Leading tokens, four bytes each, that two keys share."""

    def store_kv(self, k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write K and V of tokens into their slots."""

    def gather_kv(self, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Read K and V of slots into new tensors."""

    def write_page_table(
        self, page_table: Tensor, rows: Tensor, page_idxs: Tensor, pages: Tensor, page_size: int
    ) -> None:
        """Map pages of rows to the slots of pages."""

    def read_page_table(self, page_table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """The slots of positions of rows."""

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        rows: Tensor,
        q_starts: Tensor,
        kv_lens: Tensor,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        """Causal attention of each request's query tokens over the slots its row lists."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Scale each row to a root mean square of 1, then by weight."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """rms_norm of x + residual, and that sum."""

    def rope(
        self, q: Tensor, k: Tensor, positions: Tensor, inv_freq: Tensor, attention_scaling: float
    ) -> tuple[Tensor, Tensor]:
        """Rotate the pairs of q and k by their absolute position."""

    def silu_and_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x @ weight.T + bias."""

    def embedding(self, ids: Tensor, weight: Tensor) -> Tensor:
        """The rows of weight that ids name."""

    def sample(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor
    ) -> Tensor:
        """One token per row of logits."""


def get(name: str) -> Ops:
    """Load a backend: import its libraries and compile what it compiles.

    Raises:
        ContractError if no backend has this name.
        BackendUnavailable, in words, if this machine cannot run it.
    """
    if name not in BACKENDS:
        raise ContractError("get_backend", f"name in {', '.join(BACKENDS)}", {"name": repr(name)})
    if name in ("triton", "cuda"):
        _check_triton(name)
    module_name, compiled = BACKENDS[name]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        reason = "torch is not installed; install minisgl-ref[engine]"
        raise BackendUnavailable(name, reason) from None
    if name == "cuda":
        _check_cuda()
    for kernel in compiled:
        build.load(kernel)
    return cast("Ops", module)


def _check_cuda() -> None:
    """Refuse unless there is a CUDA device and an nvcc; its arithmetic beside attention is Triton's."""
    from minisgl_kernels import cuda_build

    cuda_build.check_available()


def _check_triton(name: str) -> None:
    """Refuse unless there is a CUDA device, or Triton's interpreter stands in for it."""
    if importlib.util.find_spec("triton") is None:
        raise BackendUnavailable(name, "triton is not installed; install minisgl-ref[engine]")
    if os.environ.get("TRITON_INTERPRET") == "1" and name == "triton":
        return
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        reason = "no CUDA device; TRITON_INTERPRET=1 runs the kernels in Triton's interpreter, slowly"
        raise BackendUnavailable(name, reason if name == "triton" else "no CUDA device")


def available() -> dict[str, str | None]:
    """Each backend's name with None if it works here, else the reason why not."""
    return {name: why_not(name) for name in BACKENDS}


def why_not(name: str) -> str | None:
    """The reason why this machine cannot run a backend, or None if it can."""
    try:
        get(name)
    except BackendUnavailable as error:
        return error.reason
    return None
