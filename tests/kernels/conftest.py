"""The backends a kernel test runs on: each of them, or a skip with the reason why it is not here.

Guide: tests/README.md, kind (e)
"""

from __future__ import annotations

import pytest

from minisgl_kernels import backends


@pytest.fixture(scope="session", params=list(backends.BACKENDS))
def ops(request: pytest.FixtureRequest) -> backends.Ops:
    """One backend after the other."""
    name: str = request.param
    reason = backends.why_not(name)
    if reason is not None:
        pytest.skip(f"backend {name}: {reason}")
    return backends.get(name)
