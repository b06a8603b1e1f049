"""What every test runs under: the Hypothesis profile and the device a test may ask for.

`ci`, the default, draws the same examples every time, with a fixed budget. `deep` is random and long:

    pytest --hypothesis-profile=deep tests/spec

A test marked `gpu` is skipped, with that reason, where there is no CUDA device; nothing else is skipped here.
Guide: tests/README.md
"""

from __future__ import annotations

import functools

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    max_examples=2000,
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")


@functools.cache
def why_no_cuda_device() -> str | None:
    """Say why a GPU test cannot run here; None if it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "no CUDA device"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a GPU test where there is no CUDA device, and say so."""
    if item.get_closest_marker("gpu") is not None:
        reason = why_no_cuda_device()
        if reason is not None:
            pytest.skip(f"needs a CUDA device: {reason}; `make gpu` runs it on a machine that has one")
