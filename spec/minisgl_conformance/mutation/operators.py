"""Two ways to change a program that Cosmic Ray does not have, as operators of its kind.

What the scheduler does, it does by statements: a forgotten one is the mistake to look for.

Nothing here chooses where: `mutants.py` does.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import parso

Position = tuple[tuple[int, int], tuple[int, int]]


class LeaveOutStatement:
    """Replaces a call, a deletion, a jump, or the assignment of an attribute or an item, by `pass`.

    An assignment of a name is left alone: without it the name is unknown, which anybody notices.
    """

    KINDS: ClassVar = ("atom_expr", "del_stmt", "return_stmt", "raise_stmt", "keyword")

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Yield where a statement may be left out."""
        if node.type == "simple_stmt" and self._has_effect(
            node.children[0], is_last=node.get_next_sibling() is None and node.parent.parent.type == "funcdef"
        ):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Leave a statement out."""
        node.children[0] = parso.parse(f"{node.get_first_leaf().prefix}pass")
        return node

    def _has_effect(self, statement: Any, is_last: bool) -> bool:
        if statement.type == "expr_stmt":
            target, sign = statement.children[:2]
            return bool(sign.type == "operator" and (sign.value != "=" or target.type == "atom_expr"))
        code = statement.get_code(include_prefix=False)
        is_nothing = code == "pass" or (code == "return None" and is_last)
        return statement.type in self.KINDS and not is_nothing


class ReverseAugmentation:
    """Exchanges `+=` and `-=`."""

    OTHER: ClassVar = {"+=": "-=", "-=": "+="}

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Yield where one of them is."""
        if node.type == "operator" and node.value in self.OTHER:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Exchange it."""
        node.value = self.OTHER[node.value]
        return node


OPERATORS = (LeaveOutStatement, ReverseAugmentation)
