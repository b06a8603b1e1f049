"""What the tests of the TLA+ models share: the folder of the modules, and a skip in words without TLC."""

from pathlib import Path

import pytest

from minisgl_conformance.tla import tlc


@pytest.fixture(scope="session")
def tla() -> Path:
    """Return the folder with the modules."""
    return Path(__file__).parents[2] / "tla"


@pytest.fixture(autouse=True)
def _needs_tlc(request: pytest.FixtureRequest) -> None:
    reason = tlc.why_unavailable()
    if reason is not None and "tla" in request.fixturenames:
        pytest.skip(f"{reason}; `make tla` installs it")
