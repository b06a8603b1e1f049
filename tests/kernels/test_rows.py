"""linear, rms_norm, rope, silu_and_mul: within the derived bound, and row by row the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minisgl_kernels.backends import Ops
from minisgl_kernels.contract import unit_roundoff
from minisgl_kernels.linear import reference as linear_reference
from minisgl_kernels.rms_norm import reference as rms_norm_reference
from minisgl_kernels.rope import reference as rope_reference
from minisgl_kernels.silu_and_mul import reference as silu_and_mul_reference
from minisgl_spec.errors import ContractError

from .strides import apart

U = unit_roundoff(torch.float32)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SEEDS = st.integers(0, 2**32)
ROWS = st.integers(0, 40)
SIZES = st.sampled_from([1, 3, 8, 33, 64, 100])


def randn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def strided(tensor: Tensor) -> Tensor:
    """The same values as a part of wider rows, NaN beside them."""
    return torch.cat([tensor, torch.full_like(tensor, float("nan"))], dim=-1)[..., : tensor.shape[-1]]


def within(out: Tensor, exact: Tensor, bound: Tensor) -> bool:
    return out.dtype == exact.dtype and bool(((out.double() - exact.double()).abs() <= bound).all())


def some_rows(rows: int) -> list[int]:
    """A few rows, the last one among them, at odd and even places of any block."""
    return sorted({*range(0, rows, 1 + rows // 12 * 2), rows - 1})


# linear


@given(rows=ROWS, in_features=SIZES, out_features=SIZES, dtype=DTYPES, biased=st.booleans(), seed=SEEDS)
@example(rows=0, in_features=3, out_features=1, dtype=torch.float32, biased=True, seed=0)
@example(rows=17, in_features=1536, out_features=40, dtype=torch.float32, biased=False, seed=0)
def test_linear_stays_within_the_bound(
    ops: Ops, rows: int, in_features: int, out_features: int, dtype: torch.dtype, biased: bool, seed: int
) -> None:
    """(linear/reference.py)"""
    x = randn(seed, rows, in_features, dtype=dtype)
    weight = randn(seed + 1, out_features, in_features, dtype=dtype)
    bias = randn(seed + 2, out_features, dtype=dtype) if biased else None

    out = ops.linear(strided(x), strided(weight), bias if bias is None else apart(bias))

    exact = linear_reference.linear(x, weight, bias)
    assert within(out, exact, linear_reference.error_bound(x, weight, bias, U))


@given(rows=st.integers(1, 40), in_features=SIZES, out_features=SIZES, dtype=DTYPES, seed=SEEDS)
@example(rows=33, in_features=576, out_features=576, dtype=torch.float32, seed=0)
@example(rows=33, in_features=1536, out_features=576, dtype=torch.float32, seed=0)
def test_a_row_of_linear_has_the_same_bits_alone(
    ops: Ops, rows: int, in_features: int, out_features: int, dtype: torch.dtype, seed: int
) -> None:
    """Neither the number of rows nor a row's place among them changes a bit. (spec/08-numerics.md)"""
    x = randn(seed, rows, in_features, dtype=dtype)
    weight = randn(seed + 1, out_features, in_features, dtype=dtype)

    together = ops.linear(x, weight)

    alone = [ops.linear(x[row : row + 1], weight) for row in some_rows(rows)]
    assert torch.equal(together[some_rows(rows)], torch.cat(alone))


def test_a_weight_that_is_written_is_read_again(ops: Ops) -> None:
    """A backend may keep a weight in a form of its own, never an old one."""
    x, weight = randn(0, 2, 8), randn(1, 5, 8)
    before = ops.linear(x, weight)

    weight.mul_(2)

    assert torch.equal(ops.linear(x, weight), 2 * before)


def test_linear_keeps_leading_axes(ops: Ops) -> None:
    """[2, 3, in] becomes [2, 3, out]."""
    x, weight = randn(0, 2, 3, 8), randn(1, 5, 8)

    assert torch.equal(ops.linear(x, weight), ops.linear(x.flatten(0, 1), weight).view(2, 3, 5))


def test_linear_refuses_a_bias_of_another_size(ops: Ops) -> None:
    """All shapes are in the message."""
    with pytest.raises(ContractError) as refusal:
        ops.linear(torch.zeros(2, 8), torch.zeros(5, 8), torch.zeros(4))

    assert refusal.value.got == {"x": "[2, 8] f32", "weight": "[5, 8] f32", "bias": "[4] f32"}


# rms_norm


@given(rows=ROWS, hidden_size=SIZES, dtype=DTYPES, seed=SEEDS)
@example(rows=3, hidden_size=576, dtype=torch.float32, seed=0)
@example(rows=0, hidden_size=8, dtype=torch.float32, seed=0)
def test_rms_norm_stays_within_the_bound(
    ops: Ops, rows: int, hidden_size: int, dtype: torch.dtype, seed: int
) -> None:
    """(rms_norm/reference.py)"""
    x, weight = randn(seed, rows, hidden_size, dtype=dtype), randn(seed + 1, hidden_size, dtype=dtype)

    out = ops.rms_norm(strided(x), apart(weight), 1e-5)

    exact = rms_norm_reference.rms_norm(x, weight, 1e-5)
    assert within(out, exact, rms_norm_reference.error_bound(x, weight, 1e-5, U))


@given(rows=st.integers(1, 40), hidden_size=SIZES, dtype=DTYPES, seed=SEEDS)
@example(rows=80, hidden_size=576, dtype=torch.float32, seed=0)
def test_a_row_of_rms_norm_has_the_same_bits_alone(
    ops: Ops, rows: int, hidden_size: int, dtype: torch.dtype, seed: int
) -> None:
    """(spec/08-numerics.md)"""
    x, weight = randn(seed, rows, hidden_size, dtype=dtype), randn(seed + 1, hidden_size, dtype=dtype)

    together = ops.rms_norm(x, weight, 1e-5)

    alone = [ops.rms_norm(x[row : row + 1], weight, 1e-5) for row in some_rows(rows)]
    assert torch.equal(together[some_rows(rows)], torch.cat(alone))


@given(rows=ROWS, hidden_size=SIZES, dtype=DTYPES, seed=SEEDS)
@example(rows=3, hidden_size=576, dtype=torch.float32, seed=0)
@example(rows=0, hidden_size=8, dtype=torch.float32, seed=0)
def test_add_rms_norm_is_a_sum_and_its_norm(
    ops: Ops, rows: int, hidden_size: int, dtype: torch.dtype, seed: int
) -> None:
    """The sum has the bits of x + residual, the rest those of rms_norm of it. (rms_norm/reference.py)"""
    x, residual = randn(seed, rows, hidden_size, dtype=dtype), randn(seed + 2, rows, hidden_size, dtype=dtype)
    weight = randn(seed + 1, hidden_size, dtype=dtype)

    normed, total = ops.add_rms_norm(strided(x), strided(residual), apart(weight), 1e-5)

    assert torch.equal(total, x + residual)
    assert torch.equal(normed, ops.rms_norm(x + residual, weight, 1e-5))


def test_rms_norm_is_the_formula_of_its_docstring() -> None:
    """Plain Python over one row: 3 and 4 have a mean square of 12.5."""
    out = rms_norm_reference.rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 1e-30)

    assert torch.equal(out, torch.tensor([[3 / 12.5**0.5, 2 * 4 / 12.5**0.5]]))


def test_rms_norm_refuses_an_epsilon_of_zero(ops: Ops) -> None:
    """The message shows it."""
    with pytest.raises(ContractError) as refusal:
        ops.rms_norm(torch.zeros(1, 2), torch.zeros(2), 0.0)

    assert str(refusal.value) == "rms_norm: need eps > 0; got eps=0.0. A row of zeros would divide by zero."


# silu_and_mul


@given(rows=ROWS, width=SIZES, dtype=DTYPES, size=st.sampled_from([1.0, 50.0]), seed=SEEDS)
@example(rows=0, width=8, dtype=torch.float32, size=1.0, seed=0)
@example(rows=1, width=33, dtype=torch.bfloat16, size=50.0, seed=0)
def test_silu_and_mul_stays_within_the_bound(
    ops: Ops, rows: int, width: int, dtype: torch.dtype, size: float, seed: int
) -> None:
    """Large negative gates included, where exp overflows and the result is 0. (silu_and_mul/reference.py)"""
    gate, up = randn(seed, rows, width, dtype=dtype) * size, randn(seed + 1, rows, width, dtype=dtype)

    out = ops.silu_and_mul(strided(gate), strided(up))

    exact = silu_and_mul_reference.silu_and_mul(gate, up)
    assert within(out, exact, silu_and_mul_reference.error_bound(gate, up, U))


@given(rows=st.integers(1, 40), width=SIZES, dtype=DTYPES, seed=SEEDS)
@example(rows=40, width=1536, dtype=torch.float32, seed=0)
def test_a_row_of_silu_and_mul_has_the_same_bits_alone(
    ops: Ops, rows: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    """(spec/08-numerics.md)"""
    gate, up = randn(seed, rows, width, dtype=dtype), randn(seed + 1, rows, width, dtype=dtype)

    together = ops.silu_and_mul(gate, up)

    alone = [ops.silu_and_mul(gate[row : row + 1], up[row : row + 1]) for row in some_rows(rows)]
    assert torch.equal(together[some_rows(rows)], torch.cat(alone))


def test_silu_agrees_with_torch() -> None:
    """torch's silu in float64 differs by roundings of float64 only."""
    gate, up = randn(0, 100).double(), randn(1, 100).double()

    out = silu_and_mul_reference.silu_and_mul(gate, up)

    bound = silu_and_mul_reference.error_bound(gate, up, unit_roundoff(torch.float64))
    assert within(torch.nn.functional.silu(gate) * up, out, 2 * bound)


# rope


@given(
    rows=ROWS,
    heads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    num_pairs=st.sampled_from([1, 4, 10, 32, 128]),
    dtype=DTYPES,
    seed=SEEDS,
)
@example(rows=0, heads=(1, 1), num_pairs=4, dtype=torch.float32, seed=0)
@example(rows=1, heads=(3, 1), num_pairs=4, dtype=torch.bfloat16, seed=0)
@example(rows=5, heads=(2, 1), num_pairs=128, dtype=torch.float32, seed=0)
@settings(max_examples=30)
def test_rope_stays_within_the_bound(
    ops: Ops, rows: int, heads: tuple[int, int], num_pairs: int, dtype: torch.dtype, seed: int
) -> None:
    """(rope/reference.py)"""
    q = randn(seed, rows, heads[0], 2 * num_pairs, dtype=dtype)
    k = randn(seed + 1, rows, heads[1], 2 * num_pairs, dtype=dtype)
    positions, inv_freq = torch.arange(rows) * 37, 1 / (1 + torch.arange(num_pairs).float())

    where = apart(positions.int(), poison=-1)
    out_q, out_k = ops.rope(strided(q), strided(k), where, apart(inv_freq), 1.25)

    exact_q, exact_k = rope_reference.rope(q, k, positions, inv_freq, 1.25)
    assert within(out_q, exact_q, rope_reference.error_bound(q, positions, inv_freq, 1.25, U))
    assert within(out_k, exact_k, rope_reference.error_bound(k, positions, inv_freq, 1.25, U))


@given(rows=st.integers(1, 40), num_pairs=st.sampled_from([4, 10, 32]), dtype=DTYPES, seed=SEEDS)
@settings(max_examples=25)
def test_a_row_of_rope_has_the_same_bits_alone(
    ops: Ops, rows: int, num_pairs: int, dtype: torch.dtype, seed: int
) -> None:
    """(spec/08-numerics.md)"""
    q = randn(seed, rows, 3, 2 * num_pairs, dtype=dtype)
    k = randn(seed + 1, rows, 2, 2 * num_pairs, dtype=dtype)
    positions, inv_freq = torch.arange(rows) * 37, 1 / (1 + torch.arange(num_pairs).float())

    together = ops.rope(q, k, positions, inv_freq, 1.0)

    picked = some_rows(rows)
    alone = [ops.rope(q[r : r + 1], k[r : r + 1], positions[r : r + 1], inv_freq, 1.0) for r in picked]
    assert torch.equal(together[0][picked], torch.cat([one for one, _ in alone]))
    assert torch.equal(together[1][picked], torch.cat([one for _, one in alone]))


def test_rope_turns_a_pair_by_its_angle() -> None:
    """(1, 0) at position 2 with 0.25 radians per position becomes (cos 0.5, sin 0.5), twice as long."""
    q = torch.tensor([[[1.0, 0.0]]])

    out, _ = rope_reference.rope(q, q, torch.tensor([2]), torch.tensor([0.25]), 2.0)

    half = torch.tensor(0.5, dtype=torch.float64)
    assert torch.equal(out, (2 * torch.stack([half.cos(), half.sin()])).float().view(1, 1, 2))


def test_rope_refuses_frequencies_of_another_length(ops: Ops) -> None:
    """The message shows both lengths."""
    q = torch.zeros(1, 1, 8)

    with pytest.raises(ContractError) as refusal:
        ops.rope(q, q, torch.zeros(1, dtype=torch.int64), torch.zeros(8), 1.0)

    assert str(refusal.value) == (
        "rope: need head_dim == 2 * num_pairs; got head_dim=8, num_pairs=8. "
        "num_pairs is the length of inv_freq."
    )
