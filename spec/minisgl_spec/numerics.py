"""Numbers: the random number of an output, and which token a row of logits chooses.

The random number is a pure function of the request's seed and the index of the output, so that
batching, overlap and dropped steps cannot change it. Greedy takes the largest logit, the lowest
token on a tie.

Plain Python floats (IEEE double); the engine has its own implementation, an agreement test
compares them.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minisgl_spec.messages import Sampling
from minisgl_spec.shadow import digest_codes, digest_logits
from minisgl_spec.units import Token

_MASK = (1 << 64) - 1


def uniform(seed: int, output_idx: int) -> float:
    """Return the random number in [0, 1) of output `output_idx`: 53 bits of SplitMix64.

    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014).
    """
    state = (seed + (output_idx + 1) * 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)


def sample(logits: Sequence[float], sampling: Sampling, output_idx: int) -> Token:
    """Return the token that a row of logits chooses.

    Temperature 0: the largest logit. Otherwise: softmax of logits / temperature, tokens by falling
    probability (lower token first on a tie), the first top_k of them, the shortest prefix of those
    that holds top_p of all probability, and of that the token where the random number falls.
    """
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.temperature == 0:
        return order[0]
    largest = logits[order[0]]
    weights = [math.exp((logits[token] - largest) / sampling.temperature) for token in order]
    kept = weights[: sampling.top_k or None]
    nucleus: list[float] = []
    for weight in kept:
        nucleus.append(weight)
        if sum(nucleus) >= sampling.top_p * sum(weights):
            break
    threshold = uniform(sampling.seed, output_idx) * sum(nucleus)
    running = 0.0
    for token, weight in zip(order, nucleus, strict=False):
        running += weight
        if running > threshold:
            return token
    return order[len(nucleus) - 1]


def digest_next_token(ids: Sequence[Token], sampling: Sampling, output_idx: int, vocab_size: int) -> Token:
    """Return the token that the digest model generates after `ids`."""
    return sample(digest_logits(digest_codes(ids)[-1], vocab_size), sampling, output_idx)
