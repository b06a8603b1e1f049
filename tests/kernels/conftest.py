"""The backends a kernel test runs on: each of them, or a skip with the reason why it is not here.

Where there is no CUDA device Triton's kernels run in its interpreter, which is slow: a test draws at most
TRITON_EXAMPLES examples there, beside those it names. Where there is one, a test's tensors travel to it and
back (`on_device.py`).
Guide: tests/README.md, kind (e)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast

import pytest
import torch
from hypothesis import settings

from minisgl_kernels import backends

from .on_device import OnDevice

TRITON_EXAMPLES = 6  # an operation has at most four tests that draw
ON_A_GPU = ("triton", "cuda")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before any kernel is imported


@pytest.fixture(scope="session", params=list(backends.BACKENDS))
def ops(request: pytest.FixtureRequest) -> backends.Ops:
    """One backend after the other."""
    name: str = request.param
    reason = backends.why_not(name)
    if reason is not None:
        pytest.skip(f"backend {name}: {reason}")
    ops = backends.get(name)
    return (
        cast("backends.Ops", OnDevice(ops, "cuda")) if name in ON_A_GPU and torch.cuda.is_available() else ops
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Draw fewer examples while a test runs on Triton's interpreter."""
    callspec, test = getattr(item, "callspec", None), getattr(item, "obj", None)
    chosen: settings | None = getattr(test, "_hypothesis_internal_use_settings", None)
    if (
        chosen is None
        or callspec is None
        or callspec.params.get("ops") != "triton"
        or torch.cuda.is_available()
    ):
        return (yield)
    test._hypothesis_internal_use_settings = settings(  # type: ignore[union-attr]
        chosen, max_examples=min(chosen.max_examples, TRITON_EXAMPLES)
    )
    try:
        return (yield)
    finally:
        test._hypothesis_internal_use_settings = chosen  # type: ignore[union-attr]
