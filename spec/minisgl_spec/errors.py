"""What can go wrong, told apart by whose fault it is.

A caller's mistake is a `ContractError` and leaves the state as it was. Our own bug is an
`InvariantError`: the state is unknown, stop. A machine that lacks something is
`BackendUnavailable`. A request that cannot be served is no error but a value, `Refusal`.

Every message shows the values that broke the rule; a drawing goes into an exception note.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class ContractError(ValueError):
    """A caller's mistake; nothing was changed."""

    def __init__(self, operation: str, need: str, got: Mapping[str, object], advice: str = "") -> None:
        self.operation = operation
        self.need = need
        self.got = dict(got)
        self.advice = advice
        super().__init__(operation, need, self.got, advice)

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.got.items())
        text = f"{self.operation}: need {self.need}; got {values}."
        return f"{text} {self.advice}" if self.advice else text


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the invariant's or contract's name, and the fact with its numbers."""

    rule: str
    fact: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.fact}"


class InvariantError(RuntimeError):
    """Our own bug: one or more rules are broken and the state is unknown."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__(self.violations)

    def __str__(self) -> str:
        return "\n".join(str(violation) for violation in self.violations)


class BackendUnavailable(RuntimeError):
    """This machine cannot run a backend; the reason is in words."""

    def __init__(self, backend: str, reason: str) -> None:
        self.backend = backend
        self.reason = reason
        super().__init__(backend, reason)

    def __str__(self) -> str:
        return f"backend {self.backend} is not available: {self.reason}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not accepted: the reason, the value that caused it and the limit it broke."""

    reason: str
    value: object
    limit: object

    def __str__(self) -> str:
        return f"{self.reason}: got {self.value}, limit {self.limit}"
