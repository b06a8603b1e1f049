"""The engine's zoo as targets: each fault by its name, so that a worker process can build it, too.

Nothing here decides or judges.
Chapter: spec/deviations.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minisgl_conformance.adapters import ours
from minisgl_conformance.adapters.managers import OurManager
from minisgl_conformance.targets import CACHE, LEVELS, MANAGER, MakeTarget
from minisgl_spec.errors import ContractError
from minisgl_spec.trace import Json


def faults() -> dict[str, Any]:
    """Return the faults of the zoo by name, in its order."""
    from minisgl_ref.zoo import FAULTS

    return dict(FAULTS)


def source_of(module: str) -> str:
    """Return the source of a module of the engine."""
    from minisgl_ref.zoo.fault import source_of

    return source_of(module)


def load_changed(module: str, source: str) -> Any:
    """Load an engine that has `module` from another source; its targets claim the oracle's decisions."""
    from minisgl_ref.zoo.fault import load_sources

    return load_sources({module: source}, is_exact=True)


def fault_of(name: str) -> Any:
    """Return a fault.

    Raises: ContractError if the zoo has none of that name.
    """
    known = faults()
    if name not in known:
        raise ContractError(
            "bugs", "the name of a fault; `minisgl-ref bugs` lists them", {"name": repr(name)}
        )
    return known[name]


@dataclass(frozen=True)
class Faulty:
    """Builds targets that have a fault."""

    name: str
    level: str

    def __call__(self, config: Json) -> Any:
        """Build one."""
        return ours.make_faulty(fault_of(self.name), self.level)(config)


def make_right(level: str) -> MakeTarget:
    """Return what builds the engine without a fault, its own checks off like a faulty one's."""
    from minisgl_ref.checks import CheckLevel
    from minisgl_ref.testing import make_engine_target

    if level not in LEVELS:
        raise ContractError("make_right", f"a level of {LEVELS}", {"level": repr(level)})
    if level in (CACHE, MANAGER):
        return ours.OurCache if level == CACHE else OurManager
    return lambda config: make_engine_target(config, CheckLevel.OFF)
