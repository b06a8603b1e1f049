"""A request that could never be served was dropped, or blocked the queue for ever (deviation 10).

Upstream logged a prompt that was too long and told nobody; one that exceeded the pool stayed at the
head of the line, and nobody behind it was served. Broken: requests_finish.
"""

from __future__ import annotations

from minisgl_spec.errors import Refusal

from .engines import ours, run_until_idle


def test_a_prompt_that_is_too_long_is_refused_with_the_limit() -> None:
    """A prompt leaves room for at least one token. (04-requests.md#refusal)"""
    target = ours(max_seq_len=8)

    refusals = [target.submit(1, (1,) * 8, 1), target.submit(2, (1,) * 7, 1)]

    assert refusals == [Refusal("prompt_too_long", 8, 7), None]


def test_a_request_that_exceeds_the_pool_is_refused_with_the_limit() -> None:
    """4 prompt tokens and 6 outputs store 9 tokens: three pages of four. (04-requests.md#refusal)"""
    target = ours(page_size=4, num_pages=2)

    refusals = [target.submit(1, (1, 2, 3, 4), 6), target.submit(2, (1, 2, 3, 4), 5)]

    assert refusals == [Refusal("larger_than_pool", 3, 2), None]


def test_nobody_waits_behind_a_refused_request() -> None:
    """It never joins the line. (04-requests.md#refusal)"""
    target = ours(page_size=4, num_pages=2)
    target.submit(1, (1, 2, 3, 4), 6)
    target.submit(2, (5,), 2)

    told = run_until_idle(target)

    assert [(uid, line[-1]) for uid, line in told.items()] == [(2, "length")]
