"""The engine on a CUDA device: the same code, on real streams, under the same judges.

Needs a device; without one it is skipped with that reason. (07-overlap.md#streams)
"""

from __future__ import annotations

from functools import partial

import pytest

from minisgl_conformance import run_conformance
from minisgl_ref.testing import make_engine_target


@pytest.mark.gpu
@pytest.mark.parametrize("overlap", [False, True])
def test_the_engine_keeps_every_rule_on_cuda_streams(overlap: bool) -> None:
    """Host decisions, device reads and tokens are the oracle's. (07-overlap.md#streams)"""
    summary = run_conformance(
        partial(make_engine_target, device="cuda"),
        level="engine",
        examples=50,
        seed=1,
        config={"overlap": overlap, "streams": "inline"},
    )

    assert summary.num_judged_steps > 1_000


@pytest.mark.gpu
def test_a_tiny_llama_generates_the_same_on_cuda() -> None:
    """The tokens are those of transformers without a cache. (08-numerics.md)"""
    summary = run_conformance(
        partial(make_engine_target, device="cuda"),
        level="engine",
        examples=10,
        seed=1,
        config={"model": "tiny-llama", "streams": "inline"},
    )

    assert summary.num_programs == 10
