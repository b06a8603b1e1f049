"""paged_attention: the definition against torch's, the backends against the definition, bits against bits.

Every cache here is NaN but at the slots that the call may read, and page tables name a slot that does not
exist beyond kv_len: whoever reads more than it should shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minisgl_kernels.backends import Ops
from minisgl_kernels.contract import unit_roundoff
from minisgl_kernels.paged_attention import reference
from minisgl_spec.errors import ContractError

from .strides import apart

NOWHERE = 1_000_000  # a slot no cache has
MOST_CHUNKS = 12  # each is a launch
U = unit_roundoff(torch.float32)


@dataclass(frozen=True)
class Call:
    """The arguments of one paged_attention, in order."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    page_table: Tensor
    rows: Tensor
    q_starts: Tensor
    kv_lens: Tensor
    scale: float
    sliding_window: int | None = None


@dataclass(frozen=True)
class Case:
    """A batch by its measures: (kv_len, q_len) of each request, heads, dtype, window, seed of the numbers.

    strided: no argument is contiguous, and what lies between its elements is poison.
    """

    lens: tuple[tuple[int, int], ...]
    num_kv_heads: int = 1
    group: int = 1
    head_dim: int = 8
    dtype: torch.dtype = torch.float32
    window: int | None = None
    seed: int = 0
    page_size: int = 4
    strided: bool = False


@st.composite
def cases(draw: st.DrawFn, max_requests: int = 4, max_kv_len: int = 150) -> Case:
    lens = []
    for _ in range(draw(st.integers(0, max_requests))):
        kv_len = draw(st.integers(1, 20) | st.integers(1, max_kv_len))
        lens.append((kv_len, draw(st.just(1) | st.integers(0, kv_len))))
    return Case(
        tuple(lens),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([8, 20, 64, 65, 128, 256])),
        draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        draw(st.none() | st.integers(1, 40)),
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from([1, 3, 4, 16, 64])),
        draw(st.booleans()),
    )


EMPTY = Case(())
ONE_TOKEN = Case(((1, 1),))
TWO_KEY_BLOCKS = Case(((300, 45), (129, 1), (128, 1)), num_kv_heads=2, group=2)
SLIDING = Case(((300, 30), (5, 5)), window=150)
PAGES_OF_ONE = Case(((9, 4), (5, 1)), num_kv_heads=2, head_dim=256, page_size=1)
LARGE_PAGES = Case(((70, 3), (130, 1)), group=2, dtype=torch.bfloat16, page_size=64, strided=True)


def random_call(case: Case) -> Call:
    """Random Q, K and V on random pages out of order, NaN wherever nothing may be read."""
    generator, page_size = torch.Generator().manual_seed(case.seed), case.page_size
    pages_of = [-(-kv_len // page_size) for kv_len, _ in case.lens]
    num_pages, row_width = sum(pages_of) + 2, max(pages_of, default=1) * page_size
    pages = torch.randperm(num_pages, generator=generator)
    caches = torch.full((2, num_pages * page_size, case.num_kv_heads, case.head_dim), float("nan"))
    page_table = torch.full((len(case.lens) + 1, row_width), NOWHERE, dtype=torch.int32)
    rows = torch.randperm(len(case.lens) + 1, generator=generator).int()[: len(case.lens)]
    for (kv_len, q_len), row in zip(case.lens, rows.tolist(), strict=True):
        mine, pages = pages[: -(-kv_len // page_size)], pages[-(-kv_len // page_size) :]
        slots = (mine[:, None] * page_size + torch.arange(page_size)).flatten()[:kv_len]
        page_table[row, :kv_len] = slots.int()
        first = 0 if case.window is None else max(0, kv_len - q_len - case.window + 1)
        shape = (2, kv_len - first, case.num_kv_heads, case.head_dim)
        caches[:, slots[first:]] = torch.randn(shape, generator=generator)
    q_lens = [q_len for _, q_len in case.lens]
    num_heads = case.num_kv_heads * case.group
    q = torch.randn(sum(q_lens), num_heads, case.head_dim, generator=generator)
    numbers = [
        page_table,
        rows,
        torch.tensor([0, *q_lens]).cumsum(0).int(),
        torch.tensor([kv_len for kv_len, _ in case.lens], dtype=torch.int32),
    ]
    rows_of_floats = [tensor.to(case.dtype) for tensor in (q, *caches)]
    if case.strided:
        rows_of_floats = [apart(tensor, 1) for tensor in rows_of_floats]
        numbers = [apart(tensor, poison=NOWHERE) for tensor in numbers]
    return Call(*rows_of_floats, *numbers, case.head_dim**-0.5, case.window)


def only_request(call: Call, index: int, q_from: int = 0, q_to: int | None = None) -> Call:
    """The call with one request of the batch, or a chunk [q_from, q_to) of its query tokens."""
    start, end = call.q_starts[index : index + 2].tolist()
    q_to = end - start if q_to is None else q_to
    kv_len = call.kv_lens[index : index + 1] - (end - start - q_to)
    return replace(
        call,
        q=call.q[start + q_from : start + q_to],
        rows=call.rows[index : index + 1],
        q_starts=torch.tensor([0, q_to - q_from], dtype=torch.int32),
        kv_lens=kv_len,
    )


def on_other_pages(call: Call, seed: int) -> Call:
    """The same K and V at other slots."""
    num_slots = call.k_cache.shape[0]
    moved = torch.randperm(num_slots, generator=torch.Generator().manual_seed(seed))
    k_cache, v_cache = torch.empty_like(call.k_cache), torch.empty_like(call.v_cache)
    k_cache[moved], v_cache[moved] = call.k_cache, call.v_cache
    known = call.page_table < num_slots
    page_table = torch.where(known, moved[call.page_table.clamp(max=num_slots - 1).long()].int(), NOWHERE)
    return replace(call, k_cache=k_cache, v_cache=v_cache, page_table=page_table)


def attention_of_torch(call: Call, index: int) -> Tensor:
    """One request by torch's own attention in float64: [num_queries, num_heads, head_dim]."""
    one = only_request(call, index)
    kv_len, q_len = int(one.kv_lens), one.q.shape[0]
    queries = torch.arange(kv_len - q_len, kv_len)[:, None]
    keys = torch.arange(kv_len)
    seen = keys <= queries
    if call.sliding_window is not None:
        seen &= keys > queries - call.sliding_window
    slots = one.page_table[int(one.rows), :kv_len].long()
    k, v = (cache[slots].double().nan_to_num().transpose(0, 1) for cache in (one.k_cache, one.v_cache))
    return torch.nn.functional.scaled_dot_product_attention(
        one.q.double().transpose(0, 1), k, v, attn_mask=seen, scale=call.scale, enable_gqa=True
    ).transpose(0, 1)


@given(case=cases())
@example(case=EMPTY)
@example(case=TWO_KEY_BLOCKS)
@example(case=SLIDING)
def test_the_reference_is_torchs_attention_over_the_gathered_keys(case: Case) -> None:
    """In float64 both err by the bound at most, each. (paged_attention/reference.py)"""
    call = random_call(replace(case, dtype=torch.float64))
    bound = reference.error_bound(**vars(call), u=unit_roundoff(torch.float64))

    out = reference.paged_attention(**vars(call))

    expected = [attention_of_torch(call, index) for index in range(len(case.lens))]
    assert ((out - torch.cat([out[:0], *expected])).abs() <= 2 * bound).all()


@given(case=cases())
@example(case=EMPTY)
@example(case=ONE_TOKEN)
@example(case=TWO_KEY_BLOCKS)
@example(case=SLIDING)
@example(case=PAGES_OF_ONE)
@example(case=LARGE_PAGES)
def test_backends_stay_within_the_bound_and_read_no_poison(ops: Ops, case: Case) -> None:
    """Each element is within the derived bound, so none is NaN. (paged_attention/reference.py)"""
    call = random_call(case)
    exact = reference.paged_attention(**vars(call))
    bound = reference.error_bound(**vars(call), u=U)

    out = ops.paged_attention(**vars(call))

    assert (out.shape, out.dtype) == (call.q.shape, call.q.dtype)
    assert ((out.double() - exact.double()).abs() <= bound).all()


@given(case=cases().filter(lambda case: case.lens), index=st.integers(0, 3))
@example(case=TWO_KEY_BLOCKS, index=0)
@example(case=SLIDING, index=0)
def test_a_request_alone_has_the_bits_it_has_in_a_batch(ops: Ops, case: Case, index: int) -> None:
    """What else is in the batch changes no bit. (spec/08-numerics.md)"""
    call, index = random_call(case), index % len(case.lens)
    start, end = call.q_starts[index : index + 2].tolist()

    alone = ops.paged_attention(**vars(only_request(call, index)))

    assert torch.equal(alone, ops.paged_attention(**vars(call))[start:end])


@given(case=cases(max_requests=1, max_kv_len=300).filter(lambda case: case.lens), chunk=st.integers(1, 40))
@example(case=Case(((290, 90),), num_kv_heads=3, group=3, head_dim=64), chunk=37)
@example(case=Case(((290, 290),), window=33), chunk=16)
@settings(max_examples=25)
def test_chunks_have_the_bits_of_the_whole(ops: Ops, case: Case, chunk: int) -> None:
    """Chunking, and how much was cached before, change no bit. (chunking_changes_no_token)"""
    call = random_call(case)
    num_queries = call.q.shape[0]
    chunk = max(chunk, -(-num_queries // MOST_CHUNKS))
    chunks = [
        only_request(call, 0, start, min(start + chunk, num_queries))
        for start in range(0, num_queries, chunk)
    ]

    outs = [ops.paged_attention(**vars(part)) for part in chunks]

    assert torch.equal(torch.cat([call.q[:0], *outs]), ops.paged_attention(**vars(call)))


@given(case=cases(), seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_page_numbers_change_no_bit(ops: Ops, case: Case, seed: int) -> None:
    """The same keys on other pages give the same bits. (spec/08-numerics.md)"""
    call = random_call(case)

    moved = ops.paged_attention(**vars(on_other_pages(call, seed)))

    assert torch.equal(moved, ops.paged_attention(**vars(call)))


@pytest.mark.parametrize("group", [1, 2])
def test_strided_arguments_give_the_same_bits(ops: Ops, group: int) -> None:
    """q may be a part of a wider tensor, as the q of a fused qkv is, and so may all others."""
    case = Case(((20, 9), (7, 1)), num_kv_heads=2, group=group)

    out = ops.paged_attention(**vars(random_call(replace(case, strided=True))))

    assert torch.equal(out, ops.paged_attention(**vars(random_call(case))))


def test_one_visible_key_returns_its_value(ops: Ops) -> None:
    """The first token of a request attends to itself alone: out = v."""
    call = random_call(ONE_TOKEN)

    out = ops.paged_attention(**vars(call))

    assert torch.equal(out[0, 0], call.v_cache[call.page_table[call.rows[0], 0], 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"kv_lens": torch.tensor([5, 99], dtype=torch.int32)},
            (
                "need rows[r] in 0:len(page_table) and 0 <= q_len <= kv_lens[r] <= row_width; "
                "got r=1, rows[r]=1, len(page_table)=3, q_len=2, kv_lens[r]=99, row_width=8."
            ),
        ),
        (
            {"kv_lens": torch.tensor([5, 1], dtype=torch.int32)},
            "got r=1, rows[r]=1, len(page_table)=3, q_len=2, kv_lens[r]=1, row_width=8.",
        ),
        (
            {"rows": torch.tensor([2, -1], dtype=torch.int32)},
            "got r=1, rows[r]=-1, len(page_table)=3, q_len=2, kv_lens[r]=7, row_width=8.",
        ),
        (
            {"q_starts": torch.tensor([0, 3, 4], dtype=torch.int32)},
            "need q_starts from 0 to num_tokens; got q_starts=[0, 3, 4], num_tokens=5.",
        ),
        (
            {"kv_lens": torch.tensor([5, 8], dtype=torch.int32)},
            "need every page_table[1, 0:8] in 0:num_slots; got page_table[1, 0:8][7]=1000000, num_slots=24.",
        ),
        ({"sliding_window": 0}, "need sliding_window >= 1 or None; got sliding_window=0."),
        (
            {"q": torch.zeros(5, 3, 8)},
            "need num_heads a multiple of num_kv_heads >= 1; got num_heads=3, num_kv_heads=2.",
        ),
        ({"q": torch.zeros(5, 4, 9)}, "k_cache is the first that does not fit."),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(
    ops: Ops, change: dict[str, Any], message: str
) -> None:
    """A refusal names the request and prints every term. (HOUSE: errors)"""
    call = random_call(Case(((5, 3), (7, 2)), num_kv_heads=2, group=2))
    rows, numbers = torch.tensor([2, 1], dtype=torch.int32), [0, int(call.rows[1]), int(call.rows[0])]
    call = replace(call, rows=rows, page_table=call.page_table[numbers])

    with pytest.raises(ContractError) as refusal:
        ops.paged_attention(**vars(replace(call, **change)))

    assert message in str(refusal.value)
