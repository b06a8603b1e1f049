"""The sentence of any rule by its name.

Nothing here judges.
Chapter: spec/README.md
"""

from __future__ import annotations

from minisgl_spec.contracts import CONTRACTS
from minisgl_spec.invariants import CONTENT, INVARIANTS, OWNERSHIP, STRUCTURE


def sentence_of(rule: str) -> str:
    """Return the one sentence of an invariant or a contract."""
    if rule in INVARIANTS:
        return INVARIANTS[rule].sentence
    return CONTRACTS[rule].sentence if rule in CONTRACTS else ""


def judge_of(rule: str) -> str | None:
    """Return the judge that a rule belongs to; None for what no judge sees, only a caller."""
    if rule in INVARIANTS:
        return INVARIANTS[rule].judge
    return next((judge for judge, rules in _CONTRACTS_OF.items() if rule in rules), None)


_CONTRACTS_OF = {
    STRUCTURE: {
        "match_is_longest",
        "match_preserves_contents",
        "insert_reports_prefix",
        "sizes_add_up",
        "evict_leaves_first",
    },
    OWNERSHIP: {"evict_frees_enough", "released_once", "nothing_left_at_idle"},
    CONTENT: {
        "match_returns_cached_slots",
        "reads_hold_their_prefix",
        "digest_is_the_models",
        "tokens_are_the_models",
    },
}
"""Contracts that say of an operation what a judge says of a view."""
