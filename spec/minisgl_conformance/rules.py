"""The sentence of any rule by its name.

Nothing here judges.
Chapter: spec/README.md
"""

from __future__ import annotations

from minisgl_spec.contracts import CONTRACTS
from minisgl_spec.invariants import INVARIANTS


def sentence_of(rule: str) -> str:
    """Return the one sentence of an invariant or a contract."""
    if rule in INVARIANTS:
        return INVARIANTS[rule].sentence
    return CONTRACTS[rule].sentence if rule in CONTRACTS else ""
