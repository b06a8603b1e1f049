"""Bad input killed the scheduler, and every request with it (deviation 9).

Upstream raised in the scheduler's loop for an empty prompt, and for a negative `max_tokens` after the
handle was locked and the row taken; `max_tokens=0` yielded a token. Broken: steps_complete.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minisgl_spec.errors import Refusal

from .engines import expected_outputs, ours, run_until_idle


@pytest.mark.parametrize(
    ("ids", "max_tokens", "refusal"),
    [
        ((), 4, Refusal("empty_prompt", 0, 1)),
        ((1, 2), 0, Refusal("max_tokens_not_positive", 0, 1)),
        ((1, 2), -3, Refusal("max_tokens_not_positive", -3, 1)),
    ],
)
def test_bad_input_is_refused_and_everybody_else_goes_on(
    ids: Sequence[int], max_tokens: int, refusal: Refusal
) -> None:
    """Value and limit are in the refusal; the request beside it gets its tokens. (04-requests.md#refusal)"""
    target = ours()
    target.submit(1, (1, 2, 3), 3)
    target.step()
    before = target.view()

    refused = target.submit(2, ids, max_tokens)

    assert refused == refusal
    assert target.view() == before
    assert run_until_idle(target) == {1: [*expected_outputs(target, (1, 2, 3), 3), "length"]}
