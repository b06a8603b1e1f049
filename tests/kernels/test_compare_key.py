"""compare_key: every backend against its definition, and the definition against a sentence about tuples."""

from __future__ import annotations

from array import array
from itertools import takewhile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minisgl_kernels.backends import Ops
from minisgl_kernels.compare_key.reference import compare_key
from minisgl_spec.errors import ContractError

# few values, among them two that differ in the last byte only
TOKENS = st.lists(st.sampled_from([0, 1, 1 << 24, -1]), max_size=80)


def key(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


@given(shared=TOKENS, a=TOKENS, b=TOKENS)
@example(shared=[], a=[], b=[])
@example(shared=[7] * 64, a=[], b=[])
@example(shared=[7] * 63, a=[1], b=[2])
def test_the_reference_counts_the_common_prefix(shared: list[int], a: list[int], b: list[int]) -> None:
    """compare_key is the length of the longest common prefix, in tokens."""
    equal = takewhile(bool, map(int.__eq__, shared + a, shared + b))

    assert compare_key(key(shared + a), key(shared + b)) == len(list(equal))


@given(shared=TOKENS, a=TOKENS, b=TOKENS)
@example(shared=[], a=[], b=[1])
@example(shared=[7] * 64, a=[1 << 24], b=[1])
def test_backends_agree_with_the_reference(ops: Ops, shared: list[int], a: list[int], b: list[int]) -> None:
    """Every backend counts what the definition counts. (kernels/README.md)"""
    one, other = key(shared + a), key(shared + b)

    assert ops.compare_key(one, other) == compare_key(one, other)


def test_a_key_that_ends_within_a_token_is_refused(ops: Ops) -> None:
    """Keys have four bytes per token."""
    with pytest.raises(ContractError) as refusal:
        ops.compare_key(b"abcde", b"abcd")

    assert str(refusal.value) == (
        "compare_key: need len(a) and len(b) multiples of 4; got len(a)=5, len(b)=4. "
        "A key has four bytes per token."
    )


def test_a_key_that_is_not_bytes_is_refused(ops: Ops) -> None:
    """A list of tokens is no key."""
    with pytest.raises(ContractError) as refusal:
        ops.compare_key([1, 2], b"abcd")  # type: ignore[arg-type]

    assert str(refusal.value) == "compare_key: need a and b bytes; got a=list, b=bytes."
