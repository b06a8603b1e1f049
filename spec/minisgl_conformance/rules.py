"""Rules of the runner itself, and the sentence of any rule by its name.

`mistakes_are_refused` is about the line between a mistake and a call that has to work; all other
rules are the specification's.

Nothing here judges.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Iterator

from minisgl_spec.contracts import CONTRACTS, contract
from minisgl_spec.invariants import INVARIANTS


@contract
def mistakes_are_refused(operation: str, refusal: str | None, is_mistake: bool) -> Iterator[str]:
    """A call is refused when its contract forbids it, and only then."""
    if is_mistake and refusal is None:
        yield f"{operation} was accepted; its contract forbids it"
    if not is_mistake and refusal is not None:
        yield f"{operation} was refused ({refusal}); its contract allows it"


def sentence_of(rule: str) -> str:
    """Return the one sentence of an invariant or a contract."""
    if rule in INVARIANTS:
        return INVARIANTS[rule].sentence
    return CONTRACTS[rule].sentence if rule in CONTRACTS else ""
