"""A dense decoder over a paged KV pool: Llama, Mistral, Qwen2 and Qwen3.

Per layer: h += O(attention(rope(QKV(norm(h))))) and h += Down(silu(Gate(norm(h))) * Up(norm(h))).
The families differ only in which tensors exist (biases, q/k norms, an own head) and in which layers
slide, and the config says both. Weights of one input are kept as one matrix (q, k, v; gate, up).

This file computes nothing itself: every operator is a kernel of the chosen backend, and only that
backend decides rounding. It never knows of pages or requests; the attention batch does.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from minisgl_ref.models.config import DecoderConfig

if TYPE_CHECKING:
    from minisgl_kernels.backends import Ops
    from minisgl_ref.engine.attention import AttentionBatch
    from minisgl_ref.kvcache.mha_pool import MHAKVCache


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One layer. Matrices are [num_outputs, num_inputs]; an absent tensor is None."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """All weights of a decoder; `head` is `embedding` itself where the embeddings are tied."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


class Decoder:
    """A decoder with weights, on one device and one backend. Implements `Model`."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, ops: Ops) -> None:
        self.config = config
        self.weights = weights
        self._ops = ops
        self._inv_freq = torch.tensor(config.inv_freq, dtype=torch.float32, device=weights.norm.device)
        self._scale = config.head_dim**-0.5

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.norm.device

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_loc: torch.Tensor,
        kv_pool: MHAKVCache,
        attn: AttentionBatch,
    ) -> torch.Tensor:
        """Write this step's K and V and return the logits of each request's last token (see `Model`).

        Returns: [num_reqs, vocab_size] f32
        Mutates: the slots of out_loc, in every layer of kv_pool.
        """
        ops, weights = self._ops, self.weights
        hidden = ops.embedding(input_ids, weights.embedding)
        change: torch.Tensor | None = None  # the last part's output, not yet added
        for number, layer in enumerate(weights.layers):
            normed, hidden = self._add_norm(hidden, change, layer.input_norm)
            change = self._attention(layer, number, normed, positions, out_loc, kv_pool, attn)
            normed, hidden = self._add_norm(hidden, change, layer.mlp_norm)
            change = self._mlp(layer, normed)
        last = attn.last_tokens()
        normed, _ = self._add_norm(hidden[last], None if change is None else change[last], weights.norm)
        return ops.linear(normed, weights.head).to(torch.float32)

    def _add_norm(
        self, hidden: torch.Tensor, change: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of hidden + change, and that sum; before the first layer nothing is added."""
        eps = self.config.rms_norm_eps
        if change is None:
            return self._ops.rms_norm(hidden, weight, eps), hidden
        return self._ops.add_rms_norm(change, hidden, weight, eps)

    def _attention(
        self,
        layer: LayerWeights,
        number: int,
        normed: torch.Tensor,
        positions: torch.Tensor,
        out_loc: torch.Tensor,
        kv_pool: MHAKVCache,
        attn: AttentionBatch,
    ) -> torch.Tensor:
        ops = self._ops
        q, k, v = self._heads(ops.linear(normed, layer.qkv, layer.qkv_bias))
        if layer.q_norm is not None and layer.k_norm is not None:
            q = ops.rms_norm(q, layer.q_norm, self.config.rms_norm_eps)
            k = ops.rms_norm(k, layer.k_norm, self.config.rms_norm_eps)
        q, k = ops.rope(q, k, positions, self._inv_freq, self.config.rope_scaling)
        kv_pool.store_kv(k, v, out_loc, number)
        window = self.config.sliding_windows[number]
        out = attn.attend(q, kv_pool, number, self._scale, window, ops)
        return ops.linear(out.flatten(1), layer.o, layer.o_bias)

    def _heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config = self.config
        heads = qkv.view(qkv.shape[0], config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        first_k, first_v = config.num_heads, config.num_heads + config.num_kv_heads
        return heads[:, :first_k], heads[:, first_k:first_v], heads[:, first_v:]

    def _mlp(self, layer: LayerWeights, normed: torch.Tensor) -> torch.Tensor:
        ops = self._ops
        gate, up = ops.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return ops.linear(ops.silu_and_mul(gate, up), layer.down, layer.down_bias)
