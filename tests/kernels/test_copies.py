"""store_kv, gather_kv and embedding: copies, so every backend agrees with the definition to the bit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from minisgl_kernels import backends
from minisgl_kernels.backends import Ops
from minisgl_kernels.embedding import reference as embedding_reference
from minisgl_kernels.gather_kv import reference as gather_reference
from minisgl_kernels.store_kv import reference as store_reference
from minisgl_spec.errors import ContractError

from .on_device import OnDevice
from .strides import apart

DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64)
LAYER = 1  # of three, so that a write outside of it hits a neighbour


@dataclass(frozen=True)
class Shape:
    """Measures of one case: the pool's, the batch's, and whether k, v and slots are strided views."""

    num_slots: int
    num_tokens: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    strided: bool
    seed: int


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    num_slots = draw(st.integers(0, 9))
    return Shape(
        num_slots,
        draw(st.integers(0, num_slots)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 2, 3, 8, 20, 64, 128, 256])),
        draw(st.sampled_from(DTYPES)),
        draw(st.booleans()),
        draw(st.integers(0, 2**32)),
    )


EMPTY = Shape(0, 0, 1, 8, torch.float32, False, 0)
ONE_TOKEN = Shape(1, 1, 1, 1, torch.uint8, False, 0)
ODD = Shape(7, 5, 3, 20, torch.bfloat16, True, 1)
LARGE = Shape(9, 9, 2, 256, torch.float32, True, 2)


def random_bits(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Any bits, so NaN with any payload, too."""
    width = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape, width), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(shape)


def bits(tensor: Tensor) -> bytes:
    return tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()


def random_pool(shape: Shape, generator: torch.Generator) -> Tensor:
    return random_bits(generator, shape.dtype, 2, 3, shape.num_slots, shape.num_kv_heads, shape.head_dim)


def random_rows(shape: Shape, generator: torch.Generator) -> Tensor:
    """[num_tokens, num_kv_heads, head_dim]; a part of wider rows if strided."""
    heads = shape.num_kv_heads * (3 if shape.strided else 1)
    rows = random_bits(generator, shape.dtype, shape.num_tokens, heads, shape.head_dim)
    return rows[:, shape.num_kv_heads : 2 * shape.num_kv_heads] if shape.strided else rows


def random_slots(shape: Shape, generator: torch.Generator) -> Tensor:
    slots = torch.randperm(shape.num_slots, generator=generator).int()[: shape.num_tokens]
    return torch.stack([slots, slots], dim=1)[:, 0] if shape.strided else slots


@given(shape=shapes())
@example(shape=EMPTY)
@example(shape=ONE_TOKEN)
@example(shape=ODD)
@example(shape=LARGE)
def test_store_writes_its_slots_and_nothing_else(ops: Ops, shape: Shape) -> None:
    """k_cache[slots[i]] = k[i], to the bit; all else stays, arguments too. (store_kv/reference.py)"""
    generator = torch.Generator().manual_seed(shape.seed)
    pool, slots = random_pool(shape, generator), random_slots(shape, generator)
    k, v = random_rows(shape, generator), random_rows(shape, generator)
    expected, arguments = pool.clone(), [bits(k), bits(v), bits(slots)]
    for i, slot in enumerate(slots.tolist()):
        expected[0, LAYER, slot], expected[1, LAYER, slot] = k[i], v[i]

    ops.store_kv(pool[0, LAYER], pool[1, LAYER], slots, k, v)

    assert bits(pool) == bits(expected)
    assert [bits(k), bits(v), bits(slots)] == arguments


@given(shape=shapes())
@example(shape=EMPTY)
@example(shape=ONE_TOKEN)
@example(shape=ODD)
@example(shape=LARGE)
def test_backends_store_what_the_reference_stores(ops: Ops, shape: Shape) -> None:
    """Every backend leaves the same bits in the whole pool. (kernels/README.md)"""
    generator = torch.Generator().manual_seed(shape.seed)
    pool, slots = random_pool(shape, generator), random_slots(shape, generator)
    k, v = random_rows(shape, generator), random_rows(shape, generator)
    expected = pool.clone()
    store_reference.store_kv(expected[0, LAYER], expected[1, LAYER], slots, k, v)

    ops.store_kv(pool[0, LAYER], pool[1, LAYER], slots, k, v)

    assert bits(pool) == bits(expected)


@given(shape=shapes())
@example(shape=EMPTY)
@example(shape=ONE_TOKEN)
@example(shape=ODD)
@example(shape=LARGE)
def test_backends_gather_what_the_reference_gathers(ops: Ops, shape: Shape) -> None:
    """k[i] = k_cache[slots[i]], to the bit, slots repeated and out of order. (gather_kv/reference.py)"""
    generator = torch.Generator().manual_seed(shape.seed)
    pool, slots = random_pool(shape, generator), random_slots(shape, generator)
    slots = torch.cat([slots, slots.flip(0)])
    expected = gather_reference.gather_kv(pool[0, LAYER], pool[1, LAYER], slots)

    k, v = ops.gather_kv(pool[0, LAYER], pool[1, LAYER], slots)

    assert (k.shape, bits(k), bits(v)) == (expected[0].shape, bits(expected[0]), bits(expected[1]))
    assert bits(k) == b"".join(bits(pool[0, LAYER, slot]) for slot in slots.tolist())


def test_gather_reads_no_slot_but_its_own(ops: Ops) -> None:
    """Poison in every other slot does not reach the result."""
    cache = torch.full((9, 2, 4), float("nan"))
    cache[[7, 2]] = 1.0

    k, v = ops.gather_kv(cache, cache, torch.tensor([7, 2, 7], dtype=torch.int32))

    assert torch.equal(k, torch.ones(3, 2, 4))
    assert torch.equal(v, torch.ones(3, 2, 4))


@given(wrong=st.sampled_from([-1, 5, 2**31 - 1, -(2**31)]), at=st.integers(0, 2))
def test_a_slot_out_of_range_is_refused_and_nothing_is_written(ops: Ops, wrong: int, at: int) -> None:
    """The message shows the slot, where it stands and the limit. (refusal_changes_nothing)"""
    k_cache, v_cache, k = torch.zeros(5, 1, 2), torch.zeros(5, 1, 2), torch.ones(3, 1, 2)
    slots = torch.tensor([0, 1, 2], dtype=torch.int32)
    slots[at] = wrong

    with pytest.raises(ContractError) as refusal:
        ops.store_kv(k_cache, v_cache, slots, k, k)

    assert (
        str(refusal.value)
        == f"store_kv: need every slots in 0:num_slots; got slots[{at}]={wrong}, num_slots=5."
    )
    assert not k_cache.any()
    assert not v_cache.any()


def test_gather_refuses_a_slot_out_of_range(ops: Ops) -> None:
    """The message shows the slot, where it stands and the limit."""
    cache = torch.zeros(5, 1, 2)

    with pytest.raises(ContractError) as refusal:
        ops.gather_kv(cache, cache, torch.tensor([4, 5], dtype=torch.int32))

    assert str(refusal.value) == "gather_kv: need every slots in 0:num_slots; got slots[1]=5, num_slots=5."


def test_store_refuses_shapes_that_disagree(ops: Ops) -> None:
    """All shapes are in the message, and which one does not fit."""
    cache, k = torch.zeros(5, 2, 4), torch.zeros(3, 2, 4)

    with pytest.raises(ContractError) as refusal:
        ops.store_kv(cache, cache.clone(), torch.zeros(3, dtype=torch.int32), k, k[:2])

    assert refusal.value.got == {
        "k_cache": "[5, 2, 4] f32",
        "v_cache": "[5, 2, 4] f32",
        "slots": "[3] i32",
        "k": "[3, 2, 4] f32",
        "v": "[2, 2, 4] f32",
    }
    assert refusal.value.advice == "v is the first that does not fit."


def test_store_refuses_a_dtype_that_disagrees(ops: Ops) -> None:
    """A copy of bits needs one dtype."""
    cache, k = torch.zeros(5, 2, 4, dtype=torch.bfloat16), torch.zeros(3, 2, 4)

    with pytest.raises(ContractError, match=r"got .*k=\[3, 2, 4\] f32.* k is the first that does not fit"):
        ops.store_kv(cache, cache.clone(), torch.zeros(3, dtype=torch.int32), k, k)


@pytest.mark.parametrize("source", ["k", "v_cache"])
def test_store_refuses_arguments_that_overlap(ops: Ops, source: str) -> None:
    """A cache that is written shares memory with no other argument. The message shows the addresses."""
    pool = torch.zeros(10, 2, 4)
    k_cache, v_cache = pool[:5], pool[5:] if source == "k" else pool[4:9]
    k = pool[4:5] if source == "k" else torch.ones(1, 2, 4)

    with pytest.raises(ContractError, match=rf"need k_cache and {source} apart in memory; got k_cache=\[0x"):
        ops.store_kv(k_cache, v_cache, torch.zeros(1, dtype=torch.int32), k, torch.ones(1, 2, 4))


def test_a_cache_whose_slots_are_not_contiguous_is_refused(ops: Ops) -> None:
    """Slots are contiguous pieces; the message shows shape and stride."""
    cache = torch.zeros(2, 5, 4).transpose(0, 1)

    with pytest.raises(ContractError) as refusal:
        ops.gather_kv(cache, cache, torch.zeros(1, dtype=torch.int32))

    assert refusal.value.got == {"shape": [5, 2, 4], "stride": [4, 20, 1]}


@given(
    num_tokens=st.integers(0, 6),
    vocab_size=st.integers(1, 9),
    hidden_size=st.sampled_from([1, 3, 64]),
    strided=st.booleans(),
    seed=st.integers(0, 2**32),
)
@example(num_tokens=0, vocab_size=1, hidden_size=3, strided=False, seed=0)
@example(num_tokens=1, vocab_size=1, hidden_size=1, strided=False, seed=0)
@example(num_tokens=6, vocab_size=9, hidden_size=64, strided=True, seed=0)
def test_embedding_copies_rows(
    ops: Ops, num_tokens: int, vocab_size: int, hidden_size: int, strided: bool, seed: int
) -> None:
    """out[t] = weight[ids[t]], to the bit. (embedding/reference.py)"""
    generator = torch.Generator().manual_seed(seed)
    weight = random_bits(generator, torch.bfloat16, vocab_size, hidden_size)
    ids = torch.randint(0, vocab_size, (num_tokens,), generator=generator)

    arguments = (apart(ids, poison=-1), apart(weight)) if strided else (ids, weight)

    out = ops.embedding(*arguments)

    assert bits(out) == b"".join(bits(weight[token]) for token in ids.tolist())
    assert bits(out) == bits(embedding_reference.embedding(ids.int(), weight))


def test_embedding_refuses_an_id_outside_the_vocabulary(ops: Ops) -> None:
    """The message shows the id, where it stands and the limit."""
    with pytest.raises(ContractError) as refusal:
        ops.embedding(torch.tensor([0, 7]), torch.zeros(7, 2))

    assert str(refusal.value) == "embedding: need every ids in 0:vocab_size; got ids[1]=7, vocab_size=7."


@given(shape=shapes())
@example(shape=ODD)
def test_tensors_travel_with_their_strides_and_neighbours(shape: Shape) -> None:
    """What the GPU's backends are called through changes nothing; here the other device is a CPU, too."""
    generator = torch.Generator().manual_seed(shape.seed)
    pool, slots = random_pool(shape, generator), random_slots(shape, generator)
    k, v = random_rows(shape, generator), random_rows(shape, generator)
    expected = pool.clone()
    store_reference.store_kv(expected[0, LAYER], expected[1, LAYER], slots, k, v)

    OnDevice(backends.get("torch"), "cpu").store_kv(pool[0, LAYER], pool[1, LAYER], slots, k, v)

    assert bits(pool) == bits(expected)
