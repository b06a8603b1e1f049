"""The engine: small, complete, and checked against the oracle at every step.

    from minisgl_ref import LLM, EngineConfig, SamplingParams

Importing the package imports no torch; a name is looked up when it is first used.
Chapter: spec/README.md
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minisgl_ref.checks import CheckLevel as CheckLevel
    from minisgl_ref.config import EngineConfig as EngineConfig
    from minisgl_ref.core import SamplingParams as SamplingParams
    from minisgl_ref.llm import LLM as LLM
    from minisgl_ref.llm import Output as Output
    from minisgl_ref.llm import Piece as Piece

__all__ = ["LLM", "EngineConfig", "CheckLevel", "SamplingParams", "Output", "Piece"]

_MODULE_OF = {
    "LLM": "minisgl_ref.llm",
    "EngineConfig": "minisgl_ref.config",
    "CheckLevel": "minisgl_ref.checks",
    "SamplingParams": "minisgl_ref.core",
    "Output": "minisgl_ref.llm",
    "Piece": "minisgl_ref.llm",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
