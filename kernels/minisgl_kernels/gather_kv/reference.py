"""gather_kv: k[i] = k_cache[slots[i]] and v[i] = v_cache[slots[i]] for every i.

slots             [num_tokens] i32, repeats allowed
k_cache, v_cache  [num_slots, num_kv_heads, head_dim] T, read at slots only
k, v              [num_tokens, num_kv_heads, head_dim] T, new and contiguous; no argument is changed
A slot of a cache is one contiguous piece; slots may be strided.
Exact: a copy of bits, NaN included. Moves 2 * num_tokens * row_bytes in and out.
Versions: gather_kv.c (one memcpy per token and cache). Run: pytest tests/kernels -k gather_kv
"""

from __future__ import annotations

from torch import Tensor

from minisgl_kernels.contract import Contract, check_cache_layout, check_in_range

CONTRACT = Contract(
    "gather_kv",
    k_cache="[num_slots, num_kv_heads, head_dim] T",
    v_cache="[num_slots, num_kv_heads, head_dim] T",
    slots="[num_tokens] i32",
)


def gather_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Read K and V of slots into new tensors.

    Raises: ContractError for a shape, dtype, device or slot out of range.
    """
    check(k_cache, v_cache, slots)
    where = slots.long()
    return k_cache[where], v_cache[where]


def check(k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Refuse arguments for which gather_kv is not defined."""
    CONTRACT.check(k_cache, v_cache, slots)
    check_cache_layout("gather_kv", k_cache, v_cache)
    check_in_range("gather_kv", "slots", slots, "num_slots", k_cache.shape[0])
