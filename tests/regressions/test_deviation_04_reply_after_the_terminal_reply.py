"""A token was delivered after the end of its request (deviation 4).

Under overlap the next step is in flight when the end of a request is known. Upstream delivered its
token too, `finished=False`, so that clients got a token after EOS and kept state for ever.
Broken: replied_once.
"""

from __future__ import annotations

from minisgl_spec.contracts import replied_once
from minisgl_spec.messages import Reply

from .engines import EVERY_TOKEN, events_of, ours, steps, undone


def test_the_token_of_a_step_in_flight_is_dropped() -> None:
    """The first output is a stop token; the second, in flight already, is not delivered. (07-overlap.md)"""
    target = ours()
    target.submit(1, (1, 2, 3), 4, stop_ids=EVERY_TOKEN)

    replies = steps(target, 3)

    assert replies == [Reply(1, 10, "stop", 0)]
    assert target.is_idle()


def test_the_normal_loop_launches_nothing_to_drop() -> None:
    """The end is known before the next step. (07-overlap.md)"""
    target = ours(overlap=False)
    target.submit(1, (1, 2, 3), 4, stop_ids=EVERY_TOKEN)

    replies = target.step()

    assert replies == [Reply(1, 10, "stop", 0)]
    assert len(events_of(target, "launch")) == 1
    assert target.is_idle()


def test_undone_a_reply_follows_the_terminal_reply() -> None:
    """The judges see it when it is delivered. (deviations.md)"""
    target = undone(4)
    target.submit(1, (1, 2, 3), 4, stop_ids=EVERY_TOKEN)

    first, second = steps(target, 3)

    assert (first.finish_reason, second.finish_reason) == ("stop", None)
    assert list(replied_once({1}, second)) == [f"request 1 got {second} after its terminal reply"]
