"""Who attends to what in one batch: rows of the page table, query ranges, lengths.

Extend and decode are one call: request r brings the query tokens `q_starts[r]:q_starts[r + 1]`, the
last of them at position `kv_lens[r] - 1`, and each sees the keys at or before its own position,
found through `page_table[rows[r]]`. A decode is an extend by one token.

This file never builds the tensors it holds (the scheduler does) and never computes attention: the kernels do.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from minisgl_kernels.backends import Ops
    from minisgl_ref.kvcache.mha_pool import MHAKVCache


@dataclass(frozen=True)
class AttentionBatch:
    """The part of a batch that attention reads.

    page_table:  [num_rows + 1, row_width] i32 of slots.
    rows:        [num_reqs] i32, the row of each request.
    q_starts:    [num_reqs + 1] i32, from 0 to num_tokens.
    kv_lens:     [num_reqs] i32, device_len of each request.
    """

    page_table: torch.Tensor
    rows: torch.Tensor
    q_starts: torch.Tensor
    kv_lens: torch.Tensor

    @property
    def num_reqs(self) -> int:
        """Requests in this batch, padding included."""
        return self.rows.shape[0]

    def last_tokens(self) -> torch.Tensor:
        """[num_reqs] where the last query token of each request is in the batch's tokens."""
        return self.q_starts[1:].to(torch.int64) - 1

    def attend(
        self,
        q: torch.Tensor,
        kv_pool: MHAKVCache,
        layer: int,
        scale: float,
        window: int | None,
        ops: Ops,
    ) -> torch.Tensor:
        """Attention of every query token over the keys its request sees in one layer.

        Args:
            q:        [num_tokens, num_heads, head_dim]
            kv_pool:  K and V; this step's are stored already.
            layer:    which layer.
            scale:    factor on q @ k.
            window:   how many tokens a query sees counting its own, or None for all.
            ops:      the backend.

        Returns: [num_tokens, num_heads, head_dim]
        """
        return ops.paged_attention(
            q,
            kv_pool.k_cache(layer),
            kv_pool.v_cache(layer),
            self.page_table,
            self.rows,
            self.q_starts,
            self.kv_lens,
            scale,
            window,
        )
