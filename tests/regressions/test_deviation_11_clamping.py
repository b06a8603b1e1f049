"""Clamping changed the parameters of the caller (deviation 11).

Upstream cut `max_tokens` in the caller's own object: one long prompt, and every later prompt with the
same parameters got as few tokens. Broken: ends_with_its_last_token.
"""

from __future__ import annotations

from minisgl_ref.core import SamplingParams

from .engines import ours, run_until_idle


def test_a_long_prompt_does_not_shorten_the_next() -> None:
    """Both share one object; the first has room for 2 outputs, the second for all 6. (04-requests.md)"""
    target = ours(max_seq_len=12)
    params = SamplingParams(max_tokens=6)
    target.scheduler.submit(1, (1,) * 10, params)
    target.scheduler.submit(2, (2, 3), params)

    told = run_until_idle(target)

    assert [(uid, len(line) - 1) for uid, line in told.items()] == [(1, 2), (2, 6)]
    assert params == SamplingParams(max_tokens=6)


def test_the_callers_prompt_and_stop_ids_are_copied() -> None:
    """What the caller does to its lists later changes no request. (04-requests.md)"""
    target = ours()
    ids, stop_ids = [1, 2, 3], [10]
    target.submit(1, ids, 4, stop_ids=stop_ids)
    ids.append(9)
    stop_ids.clear()

    told = run_until_idle(target)

    assert told == {1: [10, "stop"]}
