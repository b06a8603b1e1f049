"""Under overlap a request was told its end one token early (deviation 8).

Upstream read off the lengths whether a request has finished, when its result was processed; by then
the next step was launched and the lengths were that step's. The token before the last said
`finished=True`, and so did the last. Broken: ends_with_its_last_token.
"""

from __future__ import annotations

import pytest

from minisgl_spec.contracts import ends_with_its_last_token
from minisgl_spec.messages import Reply

from .engines import expected_outputs, ours, run_until_idle, steps, undone


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_a_request_gets_exactly_max_tokens(overlap: bool, max_tokens: int) -> None:
    """Overlap equals normal, token for token. (07-overlap.md#finishing)"""
    target = ours(overlap=overlap)
    target.submit(1, (1, 2, 3), max_tokens)

    told = run_until_idle(target)

    assert told[1] == [*expected_outputs(target, (1, 2, 3), max_tokens), "length"]


def test_a_prefill_in_between_changes_nothing() -> None:
    """Upstream's length depended on whether a prefill came in between. (07-overlap.md#finishing)"""
    target = ours()
    target.submit(1, (1, 2, 3), 3)
    target.step()
    target.submit(2, (4, 5, 6), 3)

    told = run_until_idle(target)

    assert [len(told[1]), len(told[2])] == [4, 4]


def test_undone_the_last_two_tokens_both_say_that_they_are_the_last() -> None:
    """The judges see it with the first of them. (deviations.md)"""
    target = undone(8)
    target.submit(1, (1, 2, 3), 2)

    replies = steps(target, 3)

    assert replies == [Reply(1, 10, "length", 0), Reply(1, 10, "length", 0)]
    assert list(ends_with_its_last_token(1, [10], replies[0].finish_reason, None)) == [
        "request 1 with outputs (10,) has finish_reason=length, expected None"
    ]


def test_undone_the_normal_loop_is_exact() -> None:
    """There the lengths are those of the step that produced the token. (deviations.md)"""
    target = undone(8, overlap=False)
    target.submit(1, (1, 2, 3), 2)

    assert [reply.finish_reason for reply in steps(target, 3)] == [None, "length"]
