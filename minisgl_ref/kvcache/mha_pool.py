"""The KV pool: one tensor that holds K and V of every slot in every layer.

`[2, num_layers, num_pages + 1, page_size, num_kv_heads, head_dim]`: K then V; page `num_pages` is
the dummy, where padding may write and nobody reads. Slot `s` is page `s // page_size`, offset
`s % page_size`, so a layer seen as `[num_slots, num_kv_heads, head_dim]` is a view, never a copy.

This file never decides who owns a slot: it stores where it is told.
Chapter: spec/01-pages-and-slots.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from minisgl_spec.errors import BackendUnavailable, ContractError

if TYPE_CHECKING:
    from minisgl_kernels.backends import Ops


class MHAKVCache:
    """K and V of `num_pages` pages and one dummy page, for every layer."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        ops: Ops,
        device: torch.device | str = "cpu",
        fill: float = 0,
    ) -> None:
        """Allocate the pool with every element `fill` (NaN in tests: whoever reads it shows it).

        Raises: ContractError if a measure is below 1; BackendUnavailable if it does not fit the memory.
        """
        shape = (2, num_layers, num_pages + 1, page_size, num_kv_heads, head_dim)
        if min(num_layers, num_pages, page_size, num_kv_heads, head_dim) < 1:
            raise ContractError(
                "allocate_pool",
                "every measure >= 1",
                {
                    "num_layers": num_layers,
                    "num_pages": num_pages,
                    "page_size": page_size,
                    "num_kv_heads": num_kv_heads,
                    "head_dim": head_dim,
                },
            )
        self.num_layers = num_layers
        self.num_pages = num_pages
        self.page_size = page_size
        self.pool = _allocate(shape, fill, dtype, device)
        self._ops = ops
        by_slot = self.pool.view(2, num_layers, (num_pages + 1) * page_size, num_kv_heads, head_dim)
        self._k_layers = by_slot[0].unbind(0)
        self._v_layers = by_slot[1].unbind(0)

    @property
    def num_slots(self) -> int:
        """Slots of the pool without the dummy page's."""
        return self.num_pages * self.page_size

    @property
    def dummy_slot(self) -> int:
        """The first slot of the dummy page, where padding writes."""
        return self.num_pages * self.page_size

    def k_cache(self, layer: int) -> torch.Tensor:
        """K of one layer, a view: [num_slots + page_size, num_kv_heads, head_dim]."""
        return self._k_layers[layer]

    def v_cache(self, layer: int) -> torch.Tensor:
        """V of one layer, a view: [num_slots + page_size, num_kv_heads, head_dim]."""
        return self._v_layers[layer]

    def store_kv(self, k: torch.Tensor, v: torch.Tensor, out_loc: torch.Tensor, layer: int) -> None:
        """Write K and V of this step's tokens into their slots.

        Args:
            k, v:     [num_tokens, num_kv_heads, head_dim]
            out_loc:  [num_tokens] i32 slots, no repeats but the dummy's.
            layer:    which layer.

        Mutates: the slots of out_loc in this layer.
        """
        self._ops.store_kv(self._k_layers[layer], self._v_layers[layer], out_loc, k, v)

    def poison(self, pages: Sequence[int], fill: float = float("nan")) -> None:
        """Overwrite pages whose content nobody may read any more.

        Mutates: these pages, K and V, in every layer.
        """
        self.pool[:, :, list(pages)] = fill


def _allocate(
    shape: tuple[int, ...], fill: float, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    try:
        return torch.full(shape, fill, dtype=dtype, device=device)
    except (RuntimeError, MemoryError, OverflowError) as error:  # out of memory is a RuntimeError
        num_bytes = math.prod(shape) * dtype.itemsize
        reason = f"a KV pool of {num_bytes} bytes {list(shape)} does not fit the memory; lower num_pages"
        raise BackendUnavailable(str(device), reason) from error
