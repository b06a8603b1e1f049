"""Sampling: one token per row of logits, with random numbers that belong to the request.

The random number of an output is a pure function of the request's seed and the output's index, so
batching, overlap and dropped steps cannot change it. Greedy rows take the largest logit, the
lowest token on a tie, whatever their neighbours do.

This file never looks at another row of the batch.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from minisgl_spec.messages import Sampling

if TYPE_CHECKING:
    from minisgl_kernels.backends import Ops

GOLDEN = 0x9E3779B97F4A7C15
WORD = 0xFFFFFFFFFFFFFFFF


def uniform(seed: int, output_idx: int) -> float:
    """Return the random number in [0, 1) of one output: the top 53 bits of SplitMix64."""
    word = (seed + GOLDEN * (output_idx + 1)) & WORD
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = ((word ^ word >> shift) * factor) & WORD
    return ((word ^ word >> 31) >> 11) * 2.0**-53


def sample(logits: torch.Tensor, choices: Sequence[tuple[Sampling, int]], ops: Ops) -> torch.Tensor:
    """Choose one token per row.

    Args:
        logits:   [num_reqs, vocab_size] f32
        choices:  [num_reqs] sampling of the request and index of this output.

    Returns: [num_reqs] i64 token ids
    """
    device = logits.device
    if all(sampling.temperature == 0 for sampling, _ in choices):
        return ops.sample(logits, *_greedy(len(choices), device))
    return ops.sample(
        logits,
        torch.tensor([sampling.temperature for sampling, _ in choices], dtype=torch.float64, device=device),
        torch.tensor([min(s.top_k, logits.shape[1]) for s, _ in choices], dtype=torch.int64, device=device),
        torch.tensor([sampling.top_p for sampling, _ in choices], dtype=torch.float64, device=device),
        torch.tensor([uniform(s.seed, idx) for s, idx in choices], dtype=torch.float64, device=device),
    )


@lru_cache(maxsize=256)
def _greedy(num_reqs: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return the settings of a batch in which every row is greedy; nobody writes to them."""
    zeros = torch.zeros(num_reqs, dtype=torch.float64, device=device)
    return zeros, zeros.long(), torch.ones_like(zeros), zeros
