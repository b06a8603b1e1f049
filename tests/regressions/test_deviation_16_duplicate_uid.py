"""Two requests under one uid became one (deviation 16).

Upstream took a second request with the uid of a live one: an abort ended the first it met in each list,
and their replies merged. Broken: replied_once.
"""

from __future__ import annotations

from minisgl_spec.errors import Refusal

from .engines import EVERY_TOKEN, expected_outputs, ours, run_until_idle, steps

DUPLICATE = Refusal("duplicate_uid", 1, "one request per uid at a time")


def test_the_uid_of_a_live_request_is_refused() -> None:
    """Waiting or running, the first goes on as if nothing had been asked. (04-requests.md#refusal)"""
    target = ours()
    target.submit(1, (1, 2, 3), 3)

    refusals = [target.submit(1, (4, 5), 2)]
    steps(target, 2)
    refusals.append(target.submit(1, (4, 5), 2))

    assert refusals == [DUPLICATE, DUPLICATE]
    assert run_until_idle(target)[1] == [*expected_outputs(target, (1, 2, 3), 3)[1:], "length"]


def test_a_request_that_has_ended_but_is_in_flight_still_has_its_uid() -> None:
    """It is told its end with step 2 and released with step 3. (07-overlap.md#retired)"""
    target = ours()
    target.submit(1, (1, 2, 3), 4, stop_ids=EVERY_TOKEN)
    replies = steps(target, 2)

    refusals = [target.submit(1, (4, 5), 2)]
    target.step()
    refusals.append(target.submit(1, (4, 5), 2))

    assert [reply.finish_reason for reply in replies] == ["stop"]
    assert refusals == [DUPLICATE, None]


def test_the_uid_of_a_released_request_may_be_used_again() -> None:
    """Each of the two gets its own replies. (04-requests.md#refusal)"""
    target = ours()
    target.submit(1, (1, 2, 3), 2)
    first = run_until_idle(target)

    target.submit(1, (4, 5), 2)

    assert first == {1: [*expected_outputs(target, (1, 2, 3), 2), "length"]}
    assert run_until_idle(target) == {1: [*expected_outputs(target, (4, 5), 2), "length"]}
