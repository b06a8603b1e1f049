"""Logits equal to the last bit: cached or not, chunked or whole, alone or in a batch, after evictions.

The expected logits come from the same backend: each request alone, without a cache, prompt in one piece.
Guide: tests/README.md
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minisgl_kernels import backends
from minisgl_ref.build import build_scheduler
from minisgl_ref.checks import CheckLevel
from minisgl_ref.config import EngineConfig
from minisgl_ref.core import SamplingParams
from minisgl_ref.models.base import Model
from minisgl_ref.models.recording import RecordingModel
from minisgl_ref.models.tiny import tiny_llama
from minisgl_ref.scheduler.scheduler import Scheduler, drain
from minisgl_spec import contracts
from minisgl_spec.messages import Execution

MAX_TOKENS = 5
ALONE = EngineConfig(
    page_size=4, num_pages=64, num_rows=1, cache="naive", overlap=False, check_level=CheckLevel.OFF
)
PREFIX = tuple(range(2, 39))
PROMPTS = [(*PREFIX, 40), (*PREFIX, 41, 42), PREFIX[:30], (*PREFIX, *PREFIX)]

Bits = dict[tuple[int, int], bytes]  # (uid, position of the last token) -> its logits


class Runs:
    """An engine that is asked several times, with the bits of its logits."""

    def __init__(self, backend: str, config: EngineConfig) -> None:
        self._model = RecordingModel(model_of(backend))
        ops = backends.get(backend)
        self._scheduler: Scheduler = build_scheduler(self._model, config, ops, fill=float("nan"))
        self._executions: list[Execution] = []
        self._scheduler.engine.probe = self._executions.append

    def run(self, prompts: list[tuple[int, ...]]) -> Bits:
        """Serve all prompts together; return the logits of every step of each."""
        self._executions.clear()
        self._model.logits.clear()
        for uid, prompt in enumerate(prompts):
            params = SamplingParams(MAX_TOKENS, ignore_eos=True)
            assert self._scheduler.submit(uid, prompt, params) is None
        list(drain(self._scheduler))
        return {
            (request.uid, request.cached_len + len(request.tokens) - 1): logits.numpy().tobytes()
            for execution, batch in zip(self._executions, self._model.logits, strict=True)
            for request, logits in zip(execution.requests, batch, strict=True)
        }


@lru_cache(maxsize=4)
def model_of(backend: str) -> Model:
    return tiny_llama(backend)


@lru_cache(maxsize=256)
def alone(backend: str, prompt: tuple[int, ...]) -> Bits:
    """The logits of a request that shares nothing with anybody."""
    return Runs(backend, ALONE).run([prompt])


def differences(backend: str, prompts: list[tuple[int, ...]], bits: Bits, setting: str) -> list[str]:
    """What the contract says of every position whose logits are known from the request alone."""
    return [
        sentence
        for uid, prompt in enumerate(prompts)
        for (_, position), expected in alone(backend, prompt).items()
        for sentence in contracts.caching_changes_no_bit(
            uid, position, bits[uid, position], expected, setting
        )
    ]


@pytest.fixture(scope="session", params=["torch", "c"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    reason = backends.why_not(name)
    if reason is not None:
        pytest.skip(f"backend {name}: {reason}")
    return name


CONFIGS = st.builds(
    EngineConfig,
    page_size=st.sampled_from([1, 4, 16]),
    num_pages=st.just(256),
    num_rows=st.integers(1, 4),
    token_budget=st.sampled_from([3, 16, 64, 512]),
    overlap=st.booleans(),
    check_level=st.just(CheckLevel.OFF),
)


@given(config=CONFIGS)
@example(config=EngineConfig(page_size=1, num_pages=256, num_rows=4, token_budget=7))
@settings(max_examples=4)
def test_caching_changes_no_bit(backend: str, config: EngineConfig) -> None:
    """A cold and a warm cache give the bits of no cache, in any batch and any chunks. (08-numerics.md)"""
    engine = Runs(backend, config)

    cold, warm = engine.run(PROMPTS), engine.run(PROMPTS)

    assert differences(backend, PROMPTS, cold, "a cold cache") == []
    assert differences(backend, PROMPTS, warm, "a warm cache") == []


@given(
    page_size=st.sampled_from([1, 4]),
    order=st.permutations(range(len(PROMPTS))),
    budget=st.sampled_from([5, 64]),
)
@settings(max_examples=4)
def test_evictions_change_no_bit(backend: str, page_size: int, order: list[int], budget: int) -> None:
    """In a pool that holds one long request and little more, pages are evicted. (08-numerics.md)"""
    longest = max(len(prompt) for prompt in PROMPTS) + MAX_TOKENS
    config = replace(ALONE, page_size=page_size, num_rows=2, cache="radix", token_budget=budget)
    engine = Runs(backend, replace(config, num_pages=longest // page_size + 2))
    prompts = [PROMPTS[number] for number in order]

    first, second = engine.run(prompts), engine.run(prompts[::-1])

    assert differences(backend, prompts, first, "evictions") == []
    assert differences(backend, prompts[::-1], second, "evictions and reuse") == []
