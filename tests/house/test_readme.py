"""What the README shows is what happens.

Guide: CONTRIBUTING.md
"""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from minisgl_spec import RadixTree

README = Path(__file__).resolve().parents[2] / "README.md"
ADAPTER = re.compile(
    r"^```python\n(from minisgl_conformance import run_conformance\n.*?)^```$", re.DOTALL | re.M
)


def test_the_session_answers_as_written() -> None:
    """A split, and a refused eviction. (README.md)"""
    failed, attempted = doctest.testfile(str(README), module_relative=False)

    assert (failed, attempted) == (0, 8)


def test_the_adapter_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is right passes; here it is the oracle's. (README.md)"""
    engine = ModuleType("my_engine")
    engine.__dict__["RadixCache"] = RadixTree
    monkeypatch.setitem(sys.modules, "my_engine", engine)
    (code,) = ADAPTER.findall(README.read_text(encoding="utf-8"))

    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_the_adapter_finds_a_cache_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that evicts what is locked does not pass. (README.md)"""

    class Wrong(RadixTree):
        def ref_count(self, node: object) -> int:
            """Forget every lock."""
            return 0

    engine = ModuleType("my_engine")
    engine.__dict__["RadixCache"] = Wrong
    monkeypatch.setitem(sys.modules, "my_engine", engine)
    (code,) = ADAPTER.findall(README.read_text(encoding="utf-8"))

    with pytest.raises(AssertionError, match="sizes_add_up"):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
