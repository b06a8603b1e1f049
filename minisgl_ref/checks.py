"""Checks next to operations: how much the engine verifies of itself while it runs.

OFF checks nothing beyond the contracts of the operations. LOCAL checks what an operation itself
promised, in constant time or linear in its argument. FULL adds every invariant, recomputed from a
view after every operation. A check that fails stops the engine: the state is unknown.

This file never repairs and never decides what is true: `minisgl_spec.invariants` does.
Chapter: spec/invariants.md
"""

from __future__ import annotations

from enum import IntEnum

from minisgl_spec import draw, invariants
from minisgl_spec.errors import InvariantError, Violation
from minisgl_spec.views import CacheView, EngineView


class CheckLevel(IntEnum):
    """How much is checked after an operation; a higher level includes the lower ones."""

    OFF = 0
    LOCAL = 1
    FULL = 2


def check_local(
    holds: bool, rule: str, view: CacheView | EngineView | None = None, **numbers: object
) -> None:
    """Stop with the rule's name and the numbers it failed for, unless it holds.

    Raises: InvariantError.
    """
    if not holds:
        raise broken(rule, view, **numbers)


def broken(rule: str, view: CacheView | EngineView | None = None, **numbers: object) -> InvariantError:
    """Return the error of one broken rule.

    Args:
        rule:     name of the invariant or contract.
        view:     drawn into a note, if there is one.
        numbers:  every term of what was promised.
    """
    fact = ", ".join(f"{name}={value}" for name, value in numbers.items())
    return _drawn(InvariantError([Violation(rule, fact)]), view)


def check_full(view: CacheView | EngineView) -> None:
    """Stop with every invariant the view violates and a drawing, if there is one.

    Raises: InvariantError.
    """
    violations = invariants.violations(view)
    if violations:
        raise _drawn(InvariantError(violations), view)


def _drawn(error: InvariantError, view: CacheView | EngineView | None) -> InvariantError:
    if isinstance(view, CacheView):
        error.add_note(draw.draw_cache(view))
    elif isinstance(view, EngineView):
        error.add_note(draw.draw_engine(view))
    return error
