"""Engine and oracle take the same decisions: events, replies, refusals and views, after every operation.

The engine runs real kernels behind simulated streams, which come as far as the program says; the oracle
is plain Python without a device. Prompts have two token values, so that shared prefixes are the rule,
and pools are small, so that memory is always short.
Guide: tests/README.md
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisgl_ref.checks import CheckLevel
from minisgl_ref.testing import make_engine_target
from minisgl_spec import Config, ContractError, Scheduler, Submission
from minisgl_spec.messages import GREEDY, Sampling
from minisgl_spec.numerics import digest_next_token

VOCAB_SIZE = 8
EOS_ID = 4
PAGE_SIZES = (1, 2, 3, 4, 16)
SAMPLINGS = (
    GREEDY,
    Sampling(0.8, 0, 1.0, 1),
    Sampling(1.5, 3, 1.0, 2),
    Sampling(1.0, 0, 0.6, 3),
    Sampling(2.0, 4, 0.8, 4),
)


@dataclass(frozen=True)
class Submit:
    """Submit under the next uid, or under one that was used before."""

    ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = GREEDY
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    old_uid: int | None = None


@dataclass(frozen=True)
class Abort:
    """Abort the request of a uid, known or not."""

    uid: int


@dataclass(frozen=True)
class Step:
    """Run a step in which the streams come so far."""

    progress: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reset:
    """Empty the cache, or be refused."""


Op = Submit | Abort | Step | Reset


class Pair:
    """An engine and an oracle that are asked the same, and must answer the same."""

    def __init__(self, config: dict[str, Any], level: CheckLevel) -> None:
        self.oracle = Scheduler(
            Config.from_json(config),
            lambda ids, sampling, output_idx, _: digest_next_token(ids, sampling, output_idx, VOCAB_SIZE),
        )
        self.engine = make_engine_target(config, level)
        self.next_uid = 0

    def apply(self, op: Op) -> None:
        """Ask both, and compare everything that can be seen of them."""
        expected, found = self.answers(op)
        assert found == expected, op
        assert self.engine.last_event() == self.oracle.inner, op
        assert self.engine.view() == self.oracle.view(), op

    def answers(self, op: Op) -> tuple[object, object]:
        """What the oracle and the engine answer."""
        if isinstance(op, Submit):
            return self.submit(op)
        if isinstance(op, Abort):
            return self.oracle.abort(op.uid), self.engine.abort(op.uid)
        if isinstance(op, Reset):
            return refusal_of(self.oracle), refusal_of(self.engine)
        self.engine.plan(op.progress)
        return list(self.oracle.step().replies), self.engine.step()

    def submit(self, op: Submit) -> tuple[object, object]:
        """Submit to both."""
        uid = self.next_uid if op.old_uid is None else op.old_uid
        self.next_uid = max(self.next_uid, uid + 1)
        submission = Submission(uid, op.ids, op.max_tokens, op.stop_ids, op.ignore_eos, op.sampling)
        return self.oracle.submit(submission), self.engine.submit(
            uid,
            op.ids,
            op.max_tokens,
            stop_ids=op.stop_ids,
            ignore_eos=op.ignore_eos,
            temperature=op.sampling.temperature,
            top_k=op.sampling.top_k,
            top_p=op.sampling.top_p,
            seed=op.sampling.seed,
        )


def refusal_of(side: Any) -> str | None:
    """Reset, or return what is needed first."""
    try:
        side.reset()
    except ContractError as error:
        return error.need
    return None


def agree(config: dict[str, Any], ops: Iterable[Op], level: CheckLevel = CheckLevel.OFF) -> int:
    """Run a program on both, and then until both are idle; return the number of operations."""
    pair = Pair(config, level)
    count = 0
    for op in ops:
        pair.apply(op)
        count += 1
    for _ in range(500):
        if pair.oracle.is_idle():
            break
        pair.apply(Step())
        count += 1
    assert (pair.oracle.is_idle(), pair.engine.is_idle()) == (True, True)
    return count


def config_of(page_size: int, overlap: bool, rng: random.Random) -> dict[str, Any]:
    """A small engine: 3 to 12 pages, 1 to 4 rows."""
    return {
        "page_size": page_size,
        "num_pages": rng.randint(3, 12),
        "num_rows": rng.randint(1, 4),
        "max_seq_len": rng.choice((20, 27, 32)),
        "token_budget": rng.choice((1, 2, 3, 5, 8, 64)),
        "cache": rng.choice(("radix", "radix", "radix", "naive")),
        "overlap": overlap,
        "vocab_size": VOCAB_SIZE,
        "eos_ids": rng.choice(((), (EOS_ID,))),
        "model": "digest",
        "streams": "simulated",
    }


def random_ops(page_size: int, num_ops: int, rng: random.Random) -> Iterator[Op]:
    """Mostly steps; prompts are repeated, or made of pages of one token; a few mistakes."""
    prompts: list[tuple[int, ...]] = [(0,)]
    for _ in range(num_ops):
        kind = rng.random()
        if kind < 0.28:
            length = rng.choice((1, page_size, page_size + 1, 2 * page_size + 1, rng.randint(1, 12)))
            fresh = tuple(rng.choice((0, 1)) for _ in range(length))
            prompt = rng.choice((fresh, rng.choice(prompts), rng.choice(prompts) + fresh[:3]))[:30]
            prompts.append(prompt)
            yield Submit(
                prompt,
                rng.choice((1, 2, 3, 5, 64)),
                rng.choice(SAMPLINGS) if rng.random() < 0.3 else GREEDY,
                stop_ids=(2, 3) if rng.random() < 0.2 else (),
                ignore_eos=rng.random() < 0.2,
                old_uid=rng.randint(0, 3) if rng.random() < 0.1 else None,
            )
        elif kind < 0.31:
            yield rng.choice(
                (Submit((), 1), Submit((0, VOCAB_SIZE), 1), Submit((1,), 0), Submit((1,) * 40, 1))
            )
        elif kind < 0.43:
            yield Abort(rng.randint(0, 12))
        elif kind < 0.46:
            yield Reset()
        else:
            yield Step(tuple(rng.choice((0, 0, 1, 2, 3, 4)) for _ in range(rng.randint(0, 6))))


@pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_engine_and_oracle_agree_on_random_programs(page_size: int, overlap: bool) -> None:
    """Event by event and view by view, however late the device is. (07-overlap.md)"""
    count = 0
    for seed in range(10):
        rng = random.Random(f"{page_size} {overlap} {seed}")
        count += agree(config_of(page_size, overlap, rng), random_ops(page_size, 50, rng))

    assert count >= 500


def test_engine_and_oracle_agree_with_every_check_on() -> None:
    """FULL checks see nothing to complain about, and change nothing. (invariants.md)"""
    count = 0
    for seed in range(10):
        rng = random.Random(seed)
        page_size, overlap = rng.choice(PAGE_SIZES), rng.random() < 0.7
        config = config_of(page_size, overlap, rng)
        count += agree(config, random_ops(page_size, 40, rng), CheckLevel.FULL)

    assert count >= 400


PROMPTS = st.one_of(
    st.lists(st.integers(0, 1), max_size=9).map(tuple),
    st.sampled_from([(0,) * 4, (0,) * 5, (0, 0, 1, 1), (1,), (1,) * 27]),
)
OPS = st.one_of(
    st.builds(
        Submit,
        PROMPTS,
        st.integers(0, 4),
        st.sampled_from(SAMPLINGS),
        stop_ids=st.sampled_from([(), (), (2, 3)]),
        ignore_eos=st.booleans(),
        old_uid=st.sampled_from([None, None, None, 0, 1]),
    ),
    st.builds(Abort, st.integers(0, 6)),
    st.builds(Step, st.lists(st.integers(0, 5), max_size=6).map(tuple)),
    st.builds(Step, st.just(())),
    st.builds(Reset),
)
CONFIGS = st.builds(
    lambda page_size, overlap, seed: config_of(page_size, overlap, random.Random(seed)),
    st.sampled_from(PAGE_SIZES),
    st.booleans(),
    st.integers(0, 199),
)


@settings(max_examples=60)
@given(config=CONFIGS, ops=st.lists(OPS, max_size=30))
def test_engine_and_oracle_agree_on_drawn_programs(config: dict[str, Any], ops: list[Op]) -> None:
    """Hypothesis looks for the program on which they part, and makes it small. (07-overlap.md)"""
    agree(config, ops)
