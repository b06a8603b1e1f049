"""What the regressions share: our engine under FULL checks, an engine with one deviation undone, and words.

An engine here has pages of one token and late streams unless a test says otherwise: device work runs
when somebody waits for it, and not before.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minisgl_ref.checks import CheckLevel
from minisgl_ref.testing import EngineUnderTest, make_engine_target
from minisgl_ref.zoo.deviations import UNDOS
from minisgl_ref.zoo.fault import load
from minisgl_spec import invariants
from minisgl_spec.messages import GREEDY, Reply
from minisgl_spec.trace import Json

VOCAB_SIZE = 16

TABLE_WRITES_ONLY = (2,) * 16
"""Progress: whatever the scheduler's stream is handed runs at once, batches run late."""

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


def ours(**config: Any) -> EngineUnderTest:
    """Our engine, every invariant checked after every operation."""
    return make_engine_target({**CONFIG, **config}, CheckLevel.FULL)


def undone(number: int, **config: Any) -> EngineUnderTest:
    """Our engine with one deviation undone, its own checks off."""
    return load(UNDOS[number]).make_engine_target({**CONFIG, **config})


def broken_rules(target: EngineUnderTest) -> list[str]:
    """The rules that the target's view breaks, each once, in the order in which the runner names them."""
    return list(dict.fromkeys(violation.rule for violation in invariants.violations(target.view())))


def steps(target: EngineUnderTest, count: int) -> list[Reply]:
    """Run steps; return all their replies."""
    return [reply for _ in range(count) for reply in target.step()]


def run_until_idle(
    target: EngineUnderTest, progress: Sequence[int] = (), limit: int = 200
) -> dict[int, list[int | str]]:
    """Run until nothing is left; return what every request was told: its tokens, and how it ended.

    progress: how far the streams come in each step; as late as they can unless it says more.
    """
    told: dict[int, list[int | str]] = {}
    for _ in range(limit):
        if target.is_idle():
            break
        target.plan(progress)
        for reply in target.step():
            line = told.setdefault(reply.uid, [])
            line += [part for part in (reply.token, reply.finish_reason) if part is not None]
    return told


def expected_outputs(target: EngineUnderTest, prompt: Iterable[int], count: int) -> list[int]:
    """The first outputs of a greedy request, by the model's own function."""
    ids = tuple(prompt)
    outputs: list[int] = []
    for output_idx in range(count):
        outputs += target.next_token((*ids, *outputs), GREEDY, output_idx)[:1]
    return outputs


def events_of(target: EngineUnderTest, *kinds: str) -> list[Json]:
    """The inner events of these kinds in the last operation."""
    return [event for event in target.last_event() if event["do"] in kinds]
