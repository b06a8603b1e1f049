"""The conformance kit: point it at your prefix cache or your engine, and it is held to the definition.

    from minisgl_conformance import run_conformance
    run_conformance(make_target, level="cache", page_size=4, examples=200)

Chapter: spec/README.md
"""

from minisgl_conformance.fuzz import ConformanceError, Summary, run_conformance
from minisgl_conformance.report import report
from minisgl_conformance.runner import Finding, Result, run_program
from minisgl_conformance.targets import CacheTarget, EngineTarget

__all__ = [
    "CacheTarget",
    "ConformanceError",
    "EngineTarget",
    "Finding",
    "Result",
    "Summary",
    "report",
    "run_conformance",
    "run_program",
]
