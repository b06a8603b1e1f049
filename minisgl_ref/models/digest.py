"""The digest model: shadow memory as numbers that real kernels carry.

K and V of a token are an exact integer code of every code visible through the page table before it,
read back by the backend's gather kernel and written by its store kernel. One wrong slot changes
every later code. The next token follows from the code of the last one.

Its definition is `minisgl_spec.shadow.digest_codes`, a fold over the tokens; this file computes the
same through the KV pool and knows no token but the ones it is given.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from minisgl_ref.models.base import ModelConfig
from minisgl_spec.shadow import (
    DIGEST_BASE,
    DIGEST_K,
    DIGEST_K_READ,
    DIGEST_MIX,
    DIGEST_PRIME,
    DIGEST_TOKEN,
    DIGEST_V,
    DIGEST_V_READ,
    LOGIT_MODULUS,
    LOGIT_SCALE,
)

if TYPE_CHECKING:
    from minisgl_kernels.backends import Ops
    from minisgl_ref.engine.attention import AttentionBatch
    from minisgl_ref.kvcache.mha_pool import MHAKVCache

HEAD_DIM = len(DIGEST_K)
READ_FACTOR = sum(
    stored * read
    for stored, read in (
        *zip(DIGEST_K, DIGEST_K_READ, strict=True),
        *zip(DIGEST_V, DIGEST_V_READ, strict=True),
    )
)
"""What a code contributes when it is read back intact: code * READ_FACTOR (mod DIGEST_PRIME)."""


class DigestModel:
    """A model without weights whose every output depends on every slot it should have read.

    last_codes: the codes written by the last call, one per token.
    """

    def __init__(self, vocab_size: int, eos_ids: tuple[int, ...], max_position: int, ops: Ops) -> None:
        self.config = ModelConfig(
            vocab_size=vocab_size,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=HEAD_DIM,
            hidden_size=HEAD_DIM,
            max_position=max_position,
            eos_ids=eos_ids,
            dtype=torch.float32,
        )
        self.last_codes: list[int] = []
        self._ops = ops
        self._weights = _powers(DIGEST_BASE, max_position)
        self._read = np.array([DIGEST_K_READ, DIGEST_V_READ], dtype=np.int64)
        self._stored = np.array([DIGEST_K, DIGEST_V], dtype=np.int64)
        self._tokens = np.arange(vocab_size, dtype=np.int64)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_loc: torch.Tensor,
        kv_pool: MHAKVCache,
        attn: AttentionBatch,
    ) -> torch.Tensor:
        """Write the codes of this step's tokens; return the logits that follow each request's last.

        Args:
            input_ids, positions, out_loc, kv_pool, attn: as `Model.forward`.

        Returns: [num_reqs, vocab_size] f32

        Mutates: the slots of out_loc; last_codes.
        """
        tokens: list[int] = input_ids.tolist()
        starts: list[int] = attn.q_starts.tolist()
        kv_lens: list[int] = attn.kv_lens.tolist()
        rows: list[int] = attn.rows.tolist()
        spans = list(pairwise(starts))
        cached_lens = [kv_len - (end - start) for kv_len, (start, end) in zip(kv_lens, spans, strict=True)]
        sums = self._visible_sums(kv_pool, attn.page_table, rows, cached_lens)
        codes: list[int] = []
        for visible, cached_len, (start, end) in zip(sums, cached_lens, spans, strict=True):
            codes += self._codes(visible, cached_len, tokens[start:end])
        self._store(kv_pool, out_loc, codes)
        self.last_codes = codes
        return self._logits([codes[end - 1] for end in starts[1:]], input_ids.device)

    def _visible_sums(
        self, kv_pool: MHAKVCache, page_table: torch.Tensor, rows: list[int], cached_lens: list[int]
    ) -> list[int]:
        """Read every cached slot of every request; return the weighted sum of the codes there."""
        if not any(cached_lens):
            return [0] * len(rows)
        slots = torch.cat([page_table[row, :length] for row, length in zip(rows, cached_lens, strict=True)])
        k, v = self._ops.gather_kv(kv_pool.k_cache(0), kv_pool.v_cache(0), slots)
        read = self._read_back(k, 0) + self._read_back(v, 1)
        sums, start = [], 0
        for length in cached_lens:
            weighted = read[start : start + length] % DIGEST_PRIME * self._weights[:length] % DIGEST_PRIME
            sums.append(int(weighted.sum()) % DIGEST_PRIME)
            start += length
        return sums

    def _read_back(self, stored: torch.Tensor, which: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return what each slot's K (0) or V (1) contributes; a slot never written counts as 1."""
        values = stored.reshape(-1, HEAD_DIM).cpu().numpy()
        values = np.where(np.isnan(values), 1.0, values).astype(np.int64)
        read: np.ndarray[Any, np.dtype[np.int64]] = values @ self._read[which]
        return read

    def _codes(self, visible: int, position: int, tokens: list[int]) -> list[int]:
        """Fold the step's own tokens on top of what was visible before them."""
        codes = []
        for token in tokens:
            code = (visible * DIGEST_MIX + (token + 1) * DIGEST_TOKEN + position + 1) % DIGEST_PRIME
            visible = (
                visible + code * READ_FACTOR % DIGEST_PRIME * int(self._weights[position])
            ) % DIGEST_PRIME
            position += 1
            codes.append(code)
        return codes

    def _store(self, kv_pool: MHAKVCache, out_loc: torch.Tensor, codes: list[int]) -> None:
        values = np.array(codes, dtype=np.int64)[:, None, None] * self._stored % DIGEST_PRIME
        kv = torch.from_numpy(values.astype(np.float32)).to(out_loc.device)
        kv_pool.store_kv(kv[:, 0:1], kv[:, 1:2], out_loc, 0)

    def _logits(self, codes: list[int], device: torch.device) -> torch.Tensor:
        products = np.array(codes, dtype=np.int64)[:, None] * (self._tokens + 1)
        values = (products + self._tokens * self._tokens) % LOGIT_MODULUS
        return torch.from_numpy((values / LOGIT_SCALE).astype(np.float32)).to(device)


def _powers(base: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return base ** 0 .. base ** (count - 1), modulo DIGEST_PRIME."""
    powers = [1]
    while len(powers) < count:
        powers.append(powers[-1] * base % DIGEST_PRIME)
    return np.array(powers, dtype=np.int64)
