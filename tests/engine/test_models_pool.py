"""The KV pool: layers are views of one tensor, slots are where the glossary says, the dummy is one page.

Guide: tests/README.md
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minisgl_kernels import backends
from minisgl_ref.kvcache.mha_pool import MHAKVCache
from minisgl_spec.errors import BackendUnavailable, ContractError

MEASURES = {"num_layers": 2, "num_pages": 3, "page_size": 4, "num_kv_heads": 2, "head_dim": 8}


def pool_of(**changes: int) -> MHAKVCache:
    measures: dict[str, Any] = {**MEASURES, **changes}
    return MHAKVCache(**measures, dtype=torch.float32, ops=backends.get("torch"), fill=float("nan"))


def test_the_pool_has_one_page_more_than_it_counts() -> None:
    """Page num_pages is the dummy; its slots follow the others. (01-pages-and-slots.md)"""
    pool = pool_of()

    assert list(pool.pool.shape) == [2, 2, 4, 4, 2, 8]
    assert (pool.num_slots, pool.dummy_slot) == (12, 12)
    assert bool(pool.pool.isnan().all())


def test_a_layer_is_a_view_by_slot() -> None:
    """Slot s is offset s % page_size of page s // page_size, in K and in V. (01-pages-and-slots.md)"""
    pool = pool_of()
    k, v = torch.randn(2, 2, 2, 8, generator=torch.Generator().manual_seed(0))

    pool.store_kv(k, v, torch.tensor([9, 2], dtype=torch.int32), layer=1)

    assert torch.equal(pool.pool[0, 1, 2, 1], k[0])
    assert torch.equal(pool.pool[1, 1, 0, 2], v[1])
    assert pool.k_cache(1).data_ptr() == pool.pool[0, 1].data_ptr()
    assert pool.v_cache(1).data_ptr() == pool.pool[1, 1].data_ptr()
    assert int((~pool.pool.isnan()).sum()) == 2 * 2 * 2 * 8


def test_poison_overwrites_whole_pages_in_every_layer() -> None:
    """Whoever still reads a freed page gets NaN. (01-pages-and-slots.md)"""
    pool = pool_of()
    pool.pool.zero_()

    pool.poison([0, 2])

    assert pool.pool.isnan().all(-1).all(-1).all(-1)[0, 0].tolist() == [True, False, True, False]
    assert int(pool.pool.isnan().sum()) == pool.pool.numel() // 2


@pytest.mark.parametrize("measure", list(MEASURES))
def test_a_pool_without_room_is_refused(measure: str) -> None:
    """Every measure is at least 1."""
    with pytest.raises(ContractError, match=f"{measure}=0"):
        pool_of(**{measure: 0})


def test_a_pool_that_does_not_fit_the_memory_says_how_much_it_asked_for() -> None:
    """In bytes; what can be lowered is named. (01-pages-and-slots.md)"""
    with pytest.raises(BackendUnavailable) as missing:
        MHAKVCache(
            num_layers=2,
            num_pages=2**40 - 1,
            page_size=16,
            num_kv_heads=2,
            head_dim=8,
            dtype=torch.float32,
            ops=backends.get("torch"),
        )

    num_bytes = 2 * 2 * 2**40 * 16 * 2 * 8 * 4
    assert missing.value.reason == (
        f"a KV pool of {num_bytes} bytes [2, 2, {2**40}, 16, 2, 8] does not fit the memory; lower num_pages"
    )
