"""sample: against a version in plain Python that shares nothing with it, and claim by claim."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from minisgl_kernels.backends import Ops
from minisgl_spec.errors import ContractError

from .strides import apart

CLOSE = 1e-12  # nearer to a boundary than this, relatively, the last bit of exp decides: both sides are right


class Row(NamedTuple):
    """One row's logits and settings."""

    logits: list[float]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    uniform: float = 0.0


@st.composite
def rows_of_one_vocabulary(draw: st.DrawFn) -> list[Row]:
    vocab_size = draw(st.integers(1, 12))
    # quarters, so that ties are the rule; never all of them -inf
    logit = st.integers(-20, 20).map(lambda quarter: quarter / 4)
    rows = st.builds(
        Row,
        st.lists(logit, min_size=vocab_size, max_size=vocab_size),
        st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]),
        st.integers(-1, vocab_size + 1),
        st.sampled_from([1.0, 0.9, 0.5, 0.25, 1e-9]) | st.floats(1e-6, 1.0),
        st.floats(0, 1, exclude_max=True),
    )
    return draw(st.lists(rows, max_size=4))


def draw_tokens(ops: Ops, rows: list[Row], vocab_size: int) -> Tensor:
    logits = torch.tensor([row.logits for row in rows]).view(len(rows), vocab_size)
    return ops.sample(
        logits,
        torch.tensor([row.temperature for row in rows], dtype=torch.float64),
        torch.tensor([row.top_k for row in rows], dtype=torch.int64),
        torch.tensor([row.top_p for row in rows], dtype=torch.float64),
        torch.tensor([row.uniform for row in rows], dtype=torch.float64),
    )


def one_token(ops: Ops, row: Row) -> int:
    return int(draw_tokens(ops, [row], len(row.logits)))


def permitted_tokens(row: Row) -> set[int]:
    """What the definition permits: one token, or both neighbours of a boundary that is too close to call."""
    largest = max(row.logits)
    if row.temperature == 0:
        return {row.logits.index(largest)}
    weight = [math.exp((logit - largest) / row.temperature) for logit in row.logits]
    order = sorted(range(len(weight)), key=lambda token: (-weight[token], token))
    order = order[: row.top_k] if row.top_k > 0 else order
    total = math.fsum(weight)
    permitted: set[int] = set()
    for kept in range(1, len(order) + 1):
        reached = math.fsum(weight[token] for token in order[:kept]) - row.top_p * total
        if reached >= -CLOSE * total or kept == len(order):
            permitted |= tokens_at(row.uniform, [weight[token] for token in order[:kept]], order)
        if reached > CLOSE * total:
            break
    return permitted


def tokens_at(uniform: float, weights: list[float], order: list[int]) -> set[int]:
    total, target = math.fsum(weights), uniform * math.fsum(weights)
    found = set()
    for place in range(len(weights)):
        start, end = math.fsum(weights[:place]), math.fsum(weights[: place + 1])
        if start - CLOSE * total <= target < end + CLOSE * total:
            found.add(order[place])
    return found


@given(rows=rows_of_one_vocabulary())
@example(rows=[])
@example(rows=[Row([0.0])])
@example(rows=[Row([0.0, 1.0], 1.0, uniform=0.999)])
def test_sample_does_what_plain_python_does(ops: Ops, rows: list[Row]) -> None:
    """Every token is one that an independent version permits. (sample/reference.py)"""
    vocab_size = len(rows[0].logits) if rows else 3

    tokens = draw_tokens(ops, rows, vocab_size)

    assert (tokens.dtype, tokens.shape) == (torch.int64, (len(rows),))
    assert all(token in permitted_tokens(row) for token, row in zip(tokens.tolist(), rows, strict=True)), (
        tokens
    )


def test_strided_arguments_draw_the_same(ops: Ops) -> None:
    """Logits and settings may be parts of wider tensors; what lies between them is never read."""
    logits = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    heat, mass, draws = (
        torch.tensor(values) for values in ([0, 1, 0.5, 2], [1, 0.9, 0.5, 1], [0, 0.3, 0.9, 0.6])
    )
    top_k = torch.tensor([0, 3, 7, -1])

    tokens = ops.sample(apart(logits), apart(heat), apart(top_k, poison=1), apart(mass), apart(draws))

    assert torch.equal(tokens, ops.sample(logits, heat, top_k, mass, draws))


@given(rows=rows_of_one_vocabulary())
def test_a_row_alone_draws_what_it_draws_in_a_batch(ops: Ops, rows: list[Row]) -> None:
    """Each row is on its own. (spec/08-numerics.md)"""
    vocab_size = len(rows[0].logits) if rows else 3

    together = draw_tokens(ops, rows, vocab_size).tolist()

    assert together == [one_token(ops, row) for row in rows]


@pytest.mark.parametrize(
    ("row", "token"),
    [
        (Row([1.0, 3.0, 3.0]), 1),
        (Row([float("-inf"), -1.0]), 1),
        (Row([0.0, 0.0, 0.0, 0.0], 1.0, uniform=0.0), 0),
        (Row([0.0, 0.0, 0.0, 0.0], 1.0, uniform=0.49), 1),
        (Row([0.0, 0.0, 0.0, 0.0], 1.0, uniform=0.5), 2),
        (Row([0.0, 0.0, 0.0, 0.0], 1.0, uniform=1 - 2**-53), 3),
        (Row([0.0, 0.0, 0.0, 0.0], 1.0, top_p=0.5, uniform=0.99), 1),
        (Row([0.0, 0.0, 0.0, 0.0], 1.0, top_p=0.51, uniform=0.99), 2),
        (Row([0.0, 0.0, 0.0, 0.0], 1.0, top_k=3, uniform=0.99), 2),
        (Row([0.0, 0.0, 0.0, 0.0], 1.0, top_k=-1, uniform=0.99), 3),
        (Row([0.0, 0.0, 0.0, 0.0], 1.0, top_k=2, top_p=0.75, uniform=0.99), 1),
        (Row([0.0, 5.0, 1.0], 1.0, top_p=1e-9, uniform=0.99), 1),
        (Row([0.0, 5.0, 1.0], 5e-324, uniform=0.99), 1),
        (Row([0.0, float("-inf")], 1.0, uniform=1 - 2**-53), 0),
    ],
)
def test_ties_and_boundaries_are_decided_by_the_definition(ops: Ops, row: Row, token: int) -> None:
    """Lower token first; `reaches` includes equality, `exceeds` does not. (sample/reference.py)"""
    assert one_token(ops, row) == token


def test_top_p_counts_what_top_k_dropped(ops: Ops) -> None:
    """Of four equal tokens two are a half, even if top_k leaves three: 0.6 needs the third."""
    row = Row([0.0, 0.0, 0.0, 0.0], 1.0, top_k=3, top_p=0.6, uniform=0.99)

    assert one_token(ops, row) == 2


@pytest.mark.parametrize(
    "row",
    [
        Row([0.0], temperature=-1.0),
        Row([0.0], temperature=math.nan),
        Row([0.0], temperature=math.inf),
        Row([0.0], top_p=0.0),
        Row([0.0], top_p=1.5),
        Row([0.0], uniform=1.0),
        Row([0.0], uniform=math.nan),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_row(ops: Ops, row: Row) -> None:
    """The message shows all three settings of the row."""
    with pytest.raises(ContractError) as refusal:
        draw_tokens(ops, [Row([0.0]), row], 1)

    assert str(refusal.value) == (
        "sample: need temperature >= 0 and finite, 0 < top_p <= 1, 0 <= uniform < 1; "
        f"got row=1, temperature={row.temperature}, top_p={row.top_p}, uniform={row.uniform}."
    )


@pytest.mark.parametrize(
    ("logits", "largest", "num_nan"),
    [
        ([0.0, math.nan], "nan", 1),
        ([-math.inf, -math.inf], "-inf", 0),
        ([math.inf, 0.0], "inf", 0),
    ],
)
def test_logits_from_which_nothing_can_be_drawn_are_refused(
    ops: Ops, logits: list[float], largest: str, num_nan: int
) -> None:
    """NaN means that a slot was read before it was written; it never becomes a token."""
    with pytest.raises(ContractError) as refusal:
        draw_tokens(ops, [Row([0.0, 0.0]), Row(logits)], 2)

    assert f"got row=1, largest={largest}, num_nan={num_nan}." in str(refusal.value)
