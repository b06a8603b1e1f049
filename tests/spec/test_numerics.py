"""Claims about sampling: which token a row of logits chooses.

Guide: spec/08-numerics.md
"""

from __future__ import annotations

import pytest

from minisgl_spec.messages import GREEDY, Sampling
from minisgl_spec.numerics import digest_next_token, sample, uniform
from minisgl_spec.shadow import digest_codes, digest_logits

LOGITS = (1.0, 4.0, 2.0, 3.0)
WARM = Sampling(temperature=1.0)


def drawn(sampling: Sampling, num_outputs: int = 400) -> set[int]:
    """Every token that is drawn from LOGITS at one of the first outputs."""
    return {sample(LOGITS, sampling, output_idx) for output_idx in range(num_outputs)}


def test_greedy_takes_the_largest_logit() -> None:
    """Temperature 0 draws nothing. (08-numerics.md#sampling)"""
    assert sample(LOGITS, GREEDY, 0) == 1


def test_greedy_takes_the_lowest_token_on_a_tie() -> None:
    """Ties are decided. (08-numerics.md#sampling)"""
    assert sample((0.0, 5.0, 5.0), GREEDY, 0) == 1


def test_every_token_may_be_drawn() -> None:
    """Without top_k and top_p nothing is cut off. (08-numerics.md#sampling)"""
    assert drawn(WARM) == {0, 1, 2, 3}


def test_top_k_keeps_the_k_most_probable() -> None:
    """The others are never drawn. (08-numerics.md#sampling)"""
    assert drawn(Sampling(temperature=1.0, top_k=2)) == {1, 3}


def test_top_k_larger_than_the_vocabulary_keeps_all() -> None:
    """There is no error in asking for more. (08-numerics.md#sampling)"""
    assert drawn(Sampling(temperature=1.0, top_k=99)) == {0, 1, 2, 3}


@pytest.mark.parametrize(("top_p", "kept"), [(0.6, {1}), (0.7, {1, 3}), (0.9, {1, 2, 3})])
def test_top_p_keeps_the_shortest_prefix_that_holds_p(top_p: float, kept: set[int]) -> None:
    """The probabilities here are .64, .24, .09 and .03. (08-numerics.md#sampling)"""
    assert drawn(Sampling(temperature=1.0, top_p=top_p)) == kept


def test_a_small_top_p_still_keeps_one_token() -> None:
    """The most probable token is never cut off. (08-numerics.md#sampling)"""
    assert drawn(Sampling(temperature=1.0, top_p=1e-9)) == {1}


def test_a_high_temperature_levels_the_probabilities() -> None:
    """A low one sharpens them. (08-numerics.md#sampling)"""
    hot, cold = Sampling(temperature=100.0), Sampling(temperature=0.1)
    counts = [
        sum(sample(LOGITS, sampling, output_idx) == 1 for output_idx in range(400))
        for sampling in (hot, cold)
    ]

    assert (80 < counts[0] < 130, counts[1]) == (True, 400)


def test_a_tiny_temperature_does_not_overflow() -> None:
    """The largest logit is subtracted first. (08-numerics.md#sampling)"""
    assert sample((1000.0, -1000.0), Sampling(temperature=1e-6), 0) == 0


def test_the_random_number_is_the_requests_own() -> None:
    """Seed and output index, and nothing else. (08-numerics.md#sampling)"""
    numbers = [uniform(seed, output_idx) for seed in (0, 1) for output_idx in (0, 1)]

    assert numbers == [uniform(seed, output_idx) for seed in (0, 1) for output_idx in (0, 1)]
    assert len(set(numbers)) == 4


def test_the_random_numbers_are_pinned() -> None:
    """The first outputs of SplitMix64 from seed 0, 53 bits of each. (08-numerics.md#sampling)"""
    assert [int(uniform(0, output_idx) * 2**53) for output_idx in range(3)] == [
        0xE220A8397B1DCDAF >> 11,
        0x6E789E6AA1B965F4 >> 11,
        0x06C45D188009454F >> 11,
    ]


@pytest.mark.parametrize("seed", [-1, 0, 2**64, 2**70 + 3])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    """Seeds are taken modulo 2 ** 64. (08-numerics.md#sampling)"""
    assert 0 <= uniform(seed, 0) < 1
    assert uniform(seed, 5) == uniform(seed % 2**64, 5)


def test_the_digest_model_samples_from_its_logits() -> None:
    """The next token is a pure function of the tokens so far. (08-numerics.md#the-digest)"""
    logits = digest_logits(digest_codes((1, 2, 3))[-1], 16)

    assert digest_next_token((1, 2, 3), WARM, 4, 16) == sample(logits, WARM, 4)
