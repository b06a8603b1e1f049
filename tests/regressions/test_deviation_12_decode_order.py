"""The requests of a decode batch were listed in the order of object ids (deviation 12; mini-sglang PR 113).

Upstream kept them in a set: another order in every run, and on every rank. Broken: agrees_with_oracle.
"""

from __future__ import annotations

from minisgl_ref.testing import EngineUnderTest

from .engines import events_of, ours, steps

UIDS = (5, 2, 9, 1)


def four_decoding_requests() -> EngineUnderTest:
    target = ours(overlap=False)
    for uid in UIDS:
        target.submit(uid, (uid,), 4)
    target.step()
    return target


def test_a_decode_batch_is_in_order_of_admission() -> None:
    """Not of uids, and not of how they were allocated. (06-decode-and-release.md)"""
    target = four_decoding_requests()

    target.step()

    (launch,) = events_of(target, "launch")
    assert (launch["phase"], [request[0] for request in launch["requests"]]) == ("decode", list(UIDS))


def test_a_request_that_leaves_does_not_change_the_order_of_the_others() -> None:
    """The first is aborted, a new one comes last. (06-decode-and-release.md)"""
    target = four_decoding_requests()
    target.abort(5)
    target.submit(3, (3,), 4)

    steps(target, 2)

    (launch,) = events_of(target, "launch")
    assert [request[0] for request in launch["requests"]] == [2, 9, 1, 3]
