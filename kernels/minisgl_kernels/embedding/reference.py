"""embedding: out[t] = weight[ids[t]].

ids     [num_tokens] i32 or i64, each in 0:vocab_size
weight  [vocab_size, hidden_size] F
out     [num_tokens, hidden_size] F, new; no argument is changed
Exact: a copy of bits. Moves num_tokens * hidden_size elements in and out.
Versions: embedding.c (one memcpy per token). Run: pytest tests/kernels -k embedding
"""

from __future__ import annotations

from torch import Tensor

from minisgl_kernels.contract import Contract, check_in_range

CONTRACT = Contract("embedding", ids="[num_tokens] int", weight="[vocab_size, hidden_size] F")


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Take the rows of weight that ids name.

    Raises: ContractError for a shape, dtype, device or id out of range.
    """
    check(ids, weight)
    return weight[ids.long()]


def check(ids: Tensor, weight: Tensor) -> None:
    """Refuse arguments for which embedding is not defined."""
    CONTRACT.check(ids, weight)
    check_in_range("embedding", "ids", ids, "vocab_size", weight.shape[0])
