"""A model that keeps what it returns, so that the logits of two runs can be compared to the last bit.

It computes nothing of its own. Chapter: spec/08-numerics.md
"""

from __future__ import annotations

import torch

from minisgl_ref.engine.attention import AttentionBatch
from minisgl_ref.kvcache.mha_pool import MHAKVCache
from minisgl_ref.models.base import Model


class RecordingModel:
    """A model that keeps the logits it returned, one tensor per forward; implements `Model`."""

    def __init__(self, model: Model) -> None:
        self.config = model.config
        self.logits: list[torch.Tensor] = []
        self._model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_loc: torch.Tensor,
        kv_pool: MHAKVCache,
        attn: AttentionBatch,
    ) -> torch.Tensor:
        """Return the model's logits.

        Mutates: what the model mutates, and `logits`.
        """
        self.logits.append(self._model.forward(input_ids, positions, out_loc, kv_pool, attn))
        return self.logits[-1]
