"""A decode could find its promised page retired, and the step stopped the engine.

Under overlap a duplicate's page is retired while the cached page that replaces it becomes locked, so
free and evictable pages together were one fewer than promised, and allocation raised ContractError.
Broken: admitted_requests_fit, steps_complete. (07-overlap.md#retired)
"""

from __future__ import annotations

from minisgl_spec import Config, Scheduler, Submission, invariants
from minisgl_spec.numerics import digest_next_token

from .engines import ours, run_until_idle

POOL = {"num_pages": 3, "num_rows": 1, "token_budget": 1}


def test_a_decode_whose_page_is_retired_waits_for_the_batch_in_flight():
    """A step that lacks promised pages launches nothing; both requests end. (07-overlap.md#retired)"""
    target = ours(**POOL)
    target.submit(0, (0,), 3, ignore_eos=True)
    target.submit(1, (0,), 3, ignore_eos=True)

    told = run_until_idle(target)

    assert [len(line) for line in told.values()] == [4, 4]
    assert told[0] == told[1]


def test_the_oracle_waits_in_the_same_step():
    """The step without a launch is the one whose promise rests on a retired page. (07-overlap.md#retired)"""
    config = Config(overlap=True, **POOL)
    oracle = Scheduler(config, lambda ids, sampling, idx, _: digest_next_token(ids, sampling, idx, 16))
    outputs = oracle.step([Submission(0, (0,), 3), Submission(1, (0,), 3)])

    waited = []
    while not oracle.is_idle():
        lacking = oracle.reserved_pages() > oracle.cache.available_pages
        outputs = oracle.step()
        invariants.check(oracle.view())
        if lacking:
            waited.append([event["do"] for event in outputs.inner if event["do"] in ("launch", "process")])

    assert waited == [["process"]]
