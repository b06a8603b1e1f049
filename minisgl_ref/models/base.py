"""What the engine asks of a model: its measures, and logits for the last token of each request.

A model is a pure function of what it can see through the page table: it writes the K and V of the
tokens it is given to `out_loc`, reads K and V only through the attention batch, and returns logits.
It keeps no state of its own between two calls.

This file never builds a model: `transformer.py`, `digest.py` and `tiny.py` do.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from minisgl_ref.engine.attention import AttentionBatch
    from minisgl_ref.kvcache.mha_pool import MHAKVCache


@dataclass(frozen=True)
class ModelConfig:
    """What the engine must know of a model to size its pools and to stop its requests.

    vocab_size:    token ids are 0:vocab_size.
    max_position:  tokens; the longest sequence the model was made for.
    eos_ids:       token ids that end a sequence, in ascending order; may be empty.
    dtype:         of the weights, the activations and the KV pool.
    """

    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    max_position: int
    eos_ids: tuple[int, ...]
    dtype: torch.dtype


class Model(Protocol):
    """Anything the engine can run: a decoder with weights, or the digest model."""

    @property
    def config(self) -> ModelConfig:
        """The measures of this model."""
        ...

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_loc: torch.Tensor,
        kv_pool: MHAKVCache,
        attn: AttentionBatch,
    ) -> torch.Tensor:
        """Write this step's K and V and return the logits of the last token of each request.

        Args:
            input_ids:  [num_tokens] token ids, request after request, in order of position.
            positions:  [num_tokens] absolute position of each.
            out_loc:    [num_tokens] i32, the slot that takes the K and V of each.
            kv_pool:    where K and V are.
            attn:       who attends to what.

        Returns:
            logits: [num_reqs, vocab_size] f32

        Mutates: the slots of out_loc, in every layer of kv_pool.
        """
        ...
