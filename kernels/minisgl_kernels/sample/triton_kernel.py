"""sample in Triton: the largest logit of each row, one program per row; the rest is the definition's.

Greedy rows need nothing more. Above temperature 0 the definition orders a whole row in float64, which is the
device's sort and torch's. Definition: reference.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minisgl_kernels.sample import reference

BLOCK = 1024


@triton.jit
def _best_token(logits, vocab_size, tokens, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best, token = float("-inf"), 0
    for start in range(0, vocab_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * vocab_size + at, mask=at < vocab_size, other=float("-inf"))
        value = value.to(tl.float32)
        largest = tl.max(value, axis=0)
        first = tl.min(tl.where(value == largest, at, 2147483647), axis=0)
        token = tl.where(largest > best, first, token)
        best = tl.maximum(best, largest)
    tl.store(tokens + row, token)


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Choose one token per row (see reference.py)."""
    reference.CONTRACT.check(logits, temperature, top_k, top_p, uniform)
    if logits.dtype == torch.float64:
        return reference.sample(logits, temperature, top_k, top_p, uniform)
    reference.check_logits(logits)
    reference.check_all_settings(temperature, top_p, uniform)
    num_reqs, vocab_size = logits.shape
    tokens = torch.empty(num_reqs, dtype=torch.int64, device=logits.device)
    if num_reqs:
        _best_token[(num_reqs,)](logits.contiguous(), vocab_size, tokens, BLOCK=BLOCK)
    settings = [tensor.tolist() for tensor in (temperature, top_k, top_p, uniform)]
    for row, (heat, limit, mass, draw) in enumerate(zip(*settings, strict=True)):
        if heat > 0:
            tokens[row] = reference.sample_row(logits[row], heat, limit, mass, draw)
    return tokens
