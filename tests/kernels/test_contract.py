"""The checks themselves: axes, dtypes, memory ranges and the helpers of the error bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisgl_kernels import contract
from minisgl_kernels.contract import Contract
from minisgl_spec.errors import ContractError

COPY = Contract("copy", out="[num_tokens, width] T", slots="[num_tokens] i32", starts="[num_tokens + 1] int")
LEADING = Contract("scale", x="[..., width] F", y="[..., width] F", weight="[width] float")


def i32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def test_a_contract_accepts_what_fits() -> None:
    """Equal names are equal sizes; an axis may be one longer; leading axes are free but equal."""
    COPY.check(torch.zeros(3, 2), i32(3), i32(4))
    COPY.check(torch.zeros(0, 2, dtype=torch.uint8), i32(0), i32(1).long())
    LEADING.check(torch.zeros(4, 3, 2), torch.zeros(4, 3, 2), torch.zeros(2, dtype=torch.float64))
    LEADING.check(torch.zeros(2), torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize(
    ("tensors", "misfit"),
    [
        ((torch.zeros(3), i32(3), i32(4)), "out"),
        ((torch.zeros(3, 2), i32(4), i32(5)), "slots"),
        ((torch.zeros(3, 2), i32(3).long(), i32(4)), "slots"),
        ((torch.zeros(3, 2), i32(3), i32(3)), "starts"),
        ((torch.zeros(3, 2), i32(3), torch.zeros(4)), "starts"),
        ((torch.zeros(3, 2), i32(3).to("meta"), i32(4)), "slots"),
    ],
)
def test_a_refusal_names_the_first_that_does_not_fit(tensors: tuple[torch.Tensor, ...], misfit: str) -> None:
    """Rank, size, dtype and device: the first tensor that disagrees is named, with all shapes."""
    with pytest.raises(ContractError) as refusal:
        COPY.check(*tensors)

    assert refusal.value.advice == f"{misfit} is the first that does not fit."
    assert list(refusal.value.got) == ["out", "slots", "starts"]


@pytest.mark.parametrize(
    "y", [torch.zeros(3, 4, 2), torch.zeros(2), torch.zeros(4, 3, 2, dtype=torch.bfloat16)]
)
def test_leading_axes_and_a_shared_dtype_agree(y: torch.Tensor) -> None:
    """`...` is the same axes wherever it stands, and `F` one floating dtype."""
    with pytest.raises(ContractError, match="y is the first that does not fit"):
        LEADING.check(torch.zeros(4, 3, 2), y, torch.zeros(2))


def test_an_accepted_combination_does_not_accept_another() -> None:
    """What a contract remembers is whole combinations of shapes."""
    COPY.check(torch.zeros(3, 2), i32(3), i32(4))
    COPY.check(torch.zeros(5, 2), i32(5), i32(6))

    with pytest.raises(ContractError):
        COPY.check(torch.zeros(3, 2), i32(5), i32(4))


@pytest.mark.parametrize("text", ["[a, b]", "a f32", "[a] f31", "[a - 1] f32"])
def test_a_contract_that_cannot_be_read_is_refused(text: str) -> None:
    """A misspelt contract is an error where it is written, not at its first use."""
    with pytest.raises(ContractError, match="parse_spec"):
        Contract("broken", x=text)


@given(
    shape=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    order=st.permutations(range(3)),
    start=st.integers(0, 2),
)
def test_memory_range_holds_every_element(shape: list[int], order: list[int], start: int) -> None:
    """The range of addresses is from the first byte to the last, however the axes are ordered."""
    whole = torch.zeros(start + 27, dtype=torch.int16)
    steps = [0, 0, 0]
    step = 1
    for axis in order:
        steps[axis] = step
        step *= 3
    tensor = whole.as_strided(shape, steps, start)
    addresses = [
        whole.data_ptr() + 2 * (start + i * steps[0] + j * steps[1] + k * steps[2])
        for i in range(shape[0])
        for j in range(shape[1])
        for k in range(shape[2])
    ]

    first, end = contract.memory_range(tensor)

    assert (first, end) == (min(addresses), max(addresses) + 2) if addresses else first == end


@given(roundings=st.integers(0, 1000))
def test_gamma_bounds_that_many_roundings(roundings: int) -> None:
    """gamma(n, u) is at least (1 + u)**n - 1 and 1 - (1 - u)**n."""
    u = contract.unit_roundoff(torch.float32)

    assert contract.gamma(roundings, u) >= max((1 + u) ** roundings - 1, 1 - (1 - u) ** roundings)


def test_unit_roundoff_is_half_the_step_after_one() -> None:
    """2**-24 for f32, 2**-8 for bf16, 2**-11 for f16, 2**-53 for f64."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

    assert [contract.unit_roundoff(dtype) for dtype in dtypes] == [2**-24, 2**-8, 2**-11, 2**-53]
