"""What the tests of the scheduler share: a small engine with the digest model, and the model's own answers.

The engine checks every invariant after every operation, and its device runs as late as it can.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minisgl_ref.checks import CheckLevel
from minisgl_ref.testing import EngineUnderTest, make_engine_target
from minisgl_spec.messages import GREEDY, Reply, Sampling
from minisgl_spec.trace import Json
from minisgl_spec.views import RequestView

VOCAB_SIZE = 16
EVERY_TOKEN = tuple(range(VOCAB_SIZE))
"""As stop_ids: whatever the first output is, it is the last."""

CONFIG = {
    "page_size": 1,
    "num_pages": 24,
    "num_rows": 4,
    "max_seq_len": 24,
    "token_budget": 64,
    "cache": "radix",
    "overlap": True,
    "vocab_size": VOCAB_SIZE,
    "eos_ids": (),
    "model": "digest",
    "streams": "simulated",
}


def engine(level: CheckLevel = CheckLevel.FULL, **config: Any) -> EngineUnderTest:
    """A small engine; what is not said is as in CONFIG."""
    return make_engine_target({**CONFIG, **config}, level)


def steps(target: EngineUnderTest, count: int) -> list[Reply]:
    """Run steps; return all their replies."""
    return [reply for _ in range(count) for reply in target.step()]


def run_until_idle(target: EngineUnderTest, limit: int = 300) -> dict[int, list[int | str]]:
    """Run until nothing is left; return what every request was told: its tokens, and how it ended."""
    told: dict[int, list[int | str]] = {}
    for _ in range(limit):
        if target.is_idle():
            break
        for reply in target.step():
            line = told.setdefault(reply.uid, [])
            line += [part for part in (reply.token, reply.finish_reason) if part is not None]
    return told


def outputs(
    target: EngineUnderTest, prompt: Sequence[int], count: int, sampling: Sampling = GREEDY
) -> list[int]:
    """The first outputs of a request, by the model's own function."""
    tokens: list[int] = []
    for output_idx in range(count):
        tokens += target.next_token((*prompt, *tokens), sampling, output_idx)[:1]
    return tokens


def events_of(target: EngineUnderTest, *kinds: str) -> list[Json]:
    """The inner events of these kinds in the last operation."""
    return [event for event in target.last_event() if event["do"] in kinds]


def launches(target: EngineUnderTest, count: int) -> list[list[list[int | bool]]]:
    """Run steps; return [uid, cached_len, device_len, sampled] of each request of each batch."""
    return [
        event["requests"]
        for _ in range(count)
        if target.step() is not None
        for event in events_of(target, "launch")
    ]


def request_of(target: EngineUnderTest, uid: int) -> RequestView:
    """One request as the engine shows it."""
    (request,) = (request for request in target.view().requests if request.uid == uid)
    return request


def is_empty(target: EngineUnderTest) -> bool:
    """Whether nothing is held any more: all rows are free, no page is private, retired or locked."""
    view = target.view()
    num_owned = len(view.free_pages) + view.cache.evictable_size // view.page_size
    return (
        target.is_idle()
        and not view.requests
        and not view.retired_pages
        and len(view.free_rows) == view.num_rows
        and num_owned == view.num_pages
    )
