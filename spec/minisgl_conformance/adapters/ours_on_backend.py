"""Our own engine on a kernel backend of one's choice, every check on: what the state graph is replayed on.

Nothing here decides anything; the engine is imported when a target is made.
Chapter: tla/README.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from minisgl_conformance.targets import EngineTarget, MakeTarget


def make_engine_on(backend: str) -> MakeTarget:
    """Return a function that builds the engine with the kernels of a backend: "torch" or "c"."""

    def make(config: Mapping[str, Any]) -> EngineTarget:
        from minisgl_ref.checks import CheckLevel
        from minisgl_ref.testing import make_engine_target

        return cast(EngineTarget, make_engine_target(config, CheckLevel.FULL, backend))

    return make
