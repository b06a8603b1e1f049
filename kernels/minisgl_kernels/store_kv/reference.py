"""store_kv: k_cache[slots[i]] = k[i] and v_cache[slots[i]] = v[i] for every i.

slots             [num_tokens] i32, no repeats but the dummy slot, whose content is undefined
k, v              [num_tokens, num_kv_heads, head_dim] T
k_cache, v_cache  [num_slots, num_kv_heads, head_dim] T, written in place; other slots unchanged
The caches lie apart from each other and from the other arguments; a slot of a cache is one contiguous
piece; k, v and slots may be strided. A slot named twice is undefined.
Exact: a copy of bits, NaN included. Moves 2 * num_tokens * row_bytes in and out.
Versions: store_kv.c (one memcpy per token and cache). Run: pytest tests/kernels -k store_kv
"""

from __future__ import annotations

from torch import Tensor

from minisgl_kernels.contract import Contract, check_cache_layout, check_disjoint, check_in_range

CONTRACT = Contract(
    "store_kv",
    k_cache="[num_slots, num_kv_heads, head_dim] T",
    v_cache="[num_slots, num_kv_heads, head_dim] T",
    slots="[num_tokens] i32",
    k="[num_tokens, num_kv_heads, head_dim] T",
    v="[num_tokens, num_kv_heads, head_dim] T",
)


def store_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write K and V of tokens into their slots.

    Mutates: k_cache and v_cache, at slots only.
    Raises:  ContractError for a shape, dtype, device, overlap or slot out of range; nothing is written.
    """
    check(k_cache, v_cache, slots, k, v)
    where = slots.long()
    k_cache[where] = k
    v_cache[where] = v


def check(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse arguments for which store_kv is not defined."""
    CONTRACT.check(k_cache, v_cache, slots, k, v)
    check_cache_layout("store_kv", k_cache, v_cache)
    check_disjoint("store_kv", {"k_cache": k_cache, "v_cache": v_cache}, {"slots": slots, "k": k, "v": v})
    check_in_range("store_kv", "slots", slots, "num_slots", k_cache.shape[0])
