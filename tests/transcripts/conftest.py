"""The option that accepts what the transcripts say now.

    pytest tests/transcripts --rewrite      then read the diff

Guide: tests/README.md
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --rewrite."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the transcripts' commands answer into their files instead of comparing it",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether answers are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite", default=False))
