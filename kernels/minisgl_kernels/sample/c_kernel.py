"""sample in C: logits and settings are checked row by row, nothing is returned unless all are right.

When C refuses, the reference's checks say why in words. Definition: reference.py. Source: sample.c
"""

from __future__ import annotations

import torch
from torch import Tensor

from minisgl_kernels.build import load
from minisgl_kernels.c_calls import TYPES, computes, num_threads, pointer
from minisgl_kernels.contract import check_on_cpu
from minisgl_kernels.sample import reference

DONE, NO_MEMORY = -1, -2


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Choose one token per row (see reference.py)."""
    reference.CONTRACT.check(logits, temperature, top_k, top_p, uniform)
    check_on_cpu("sample", logits)
    if not computes(logits):
        return reference.sample(logits, temperature, top_k, top_p, uniform)
    num_reqs, vocab_size = logits.shape
    logits = logits.contiguous()
    heat, mass, draws = (tensor.double().contiguous() for tensor in (temperature, top_p, uniform))
    limits = top_k.long().contiguous()
    tokens = torch.empty(num_reqs, dtype=torch.int64)
    library = load("sample")
    outcome = library.lib.minisgl_sample(
        pointer(library, "char *", logits),
        num_reqs,
        vocab_size,
        TYPES[logits.dtype],
        pointer(library, "double *", heat),
        pointer(library, "int64_t *", limits),
        pointer(library, "double *", mass),
        pointer(library, "double *", draws),
        pointer(library, "int64_t *", tokens),
        num_threads(logits.numel()),
    )
    if outcome == NO_MEMORY:
        raise MemoryError(f"sample: no memory to order {vocab_size} tokens")
    if outcome != DONE:
        reference.check_logits(logits)
        reference.check_all_settings(temperature, top_p, uniform)
    return tokens
