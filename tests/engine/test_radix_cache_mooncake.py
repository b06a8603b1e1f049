"""A production trace through tree and `CacheManager`: as many hits as SGLang's tree gets.

The trace is named by the environment variable MINISGL_MOONCAKE_TRACE; without it these tests are skipped.
Guide: tests/README.md
"""

from __future__ import annotations

import pytest

from minisgl_ref.bench.mooncake import EXPECTED_HITS, TRACE_VARIABLE, load_keys, replay, trace_path
from minisgl_ref.checks import CheckLevel

needs_trace = pytest.mark.skipif(trace_path() is None, reason=f"{TRACE_VARIABLE} names no trace")


@pytest.fixture(scope="module")
def keys() -> list[bytes]:
    path = trace_path()
    assert path is not None, "the tests are skipped without a trace"
    return load_keys(path)


@needs_trace
@pytest.mark.parametrize("num_pages", EXPECTED_HITS)
@pytest.mark.parametrize("level", [CheckLevel.OFF, CheckLevel.LOCAL], ids=["off", "local"])
def test_the_production_trace_hits_as_often_as_in_sglang(
    keys: list[bytes], num_pages: int, level: CheckLevel
):
    """The order of eviction is SGLang's, so the hits are too. (deviations.md)"""
    _, hits = replay(keys, num_pages, level)

    assert hits == EXPECTED_HITS[num_pages]
