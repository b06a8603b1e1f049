"""Shadow memory: what each slot must hold, and the digest that carries it through real kernels.

Every slot remembers the token prefix that was written to it. Prefixes are numbered exactly (no
hashing): `extend(prefix, token)` names the prefix one token longer. A step that reads position i
must find `ids[: i + 1]` there.

The digest is the same idea as numbers a KV pool can carry: the code of a token is an integer below
`DIGEST_PRIME` computed from every code visible before it, so one wrong slot changes every later
code. `digest_codes` is its definition by a fold over the tokens.

This file knows nothing of trees, pages or requests.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from minisgl_spec.units import Slot, Token

DIGEST_PRIME = 16_777_213
"""Codes are below the largest prime under 2 ** 24, so float32 holds every code exactly."""

DIGEST_BASE = 48_271
"""Weight of position i is DIGEST_BASE ** i: another slot at any position changes the sum."""

DIGEST_MIX = 7_368_787
DIGEST_TOKEN = 69_621
DIGEST_K = (1, 3, 5, 7)
DIGEST_V = (2, 4, 6, 8)
"""A code c is stored as K = c * DIGEST_K[d] and V = c * DIGEST_V[d] (mod DIGEST_PRIME), d in 0:4."""

DIGEST_K_READ = (11, 13, 17, 19)
DIGEST_V_READ = (23, 29, 31, 37)
"""Weights with which a stored K and V are read back: every element of a slot counts."""

LOGIT_MODULUS = 1_021
LOGIT_SCALE = 64.0
"""The logit of token t after code c is (c * (t + 1) + t * t) mod LOGIT_MODULUS / LOGIT_SCALE."""


class ShadowMemory:
    """The token prefix of every slot that was written."""

    EMPTY: ClassVar[int] = 0
    """The number of the empty prefix."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Token], int] = {}
        self._last: list[tuple[int, Token]] = [(-1, -1)]
        self._contents: dict[Slot, int] = {}

    def extend(self, prefix: int, token: Token) -> int:
        """Return the number of the prefix that is `prefix` followed by `token`."""
        pair = (prefix, token)
        number = self._numbers.get(pair)
        if number is None:
            number = self._numbers[pair] = len(self._last)
            self._last.append(pair)
        return number

    def prefix(self, ids: Sequence[Token]) -> int:
        """Return the number of the token prefix `ids`."""
        number = self.EMPTY
        for token in ids:
            number = self.extend(number, token)
        return number

    def tokens(self, prefix: int) -> tuple[Token, ...]:
        """Return the tokens of a numbered prefix."""
        reverse: list[Token] = []
        while prefix != self.EMPTY:
            prefix, token = self._last[prefix]
            reverse.append(token)
        return tuple(reversed(reverse))

    def write(self, slot: Slot, prefix: int) -> None:
        """Record that `slot` now holds the last token of `prefix`."""
        self._contents[slot] = prefix

    def read(self, slot: Slot) -> int | None:
        """Return the prefix that `slot` holds, or None if it was never written."""
        return self._contents.get(slot)

    def describe_mismatch(self, slot: Slot, expected: int) -> str:
        """Say in words what `slot` holds and what it should hold."""
        found = self.read(slot)
        held = "was never written" if found is None else f"holds the KV of {self.tokens(found)}"
        return f"{held}, expected {self.tokens(expected)}"


def digest_codes(ids: Sequence[Token]) -> tuple[int, ...]:
    """Return the code of every position of `ids`: position i depends on all of `ids[: i + 1]`."""
    codes: list[int] = []
    visible, weight = 0, 1
    for position, token in enumerate(ids):
        code = digest_mix(visible, token, position)
        codes.append(code)
        visible = (visible + digest_read(code) * weight) % DIGEST_PRIME
        weight = weight * DIGEST_BASE % DIGEST_PRIME
    return tuple(codes)


def digest_mix(visible: int, token: Token, position: int) -> int:
    """Return the code of a token from the weighted sum of all codes visible before it."""
    return (visible * DIGEST_MIX + (token + 1) * DIGEST_TOKEN + position + 1) % DIGEST_PRIME


def digest_read(code: int) -> int:
    """Return what reading back a slot that holds `code` contributes, K and V together."""
    k = (code * factor % DIGEST_PRIME * read for factor, read in zip(DIGEST_K, DIGEST_K_READ, strict=True))
    v = (code * factor % DIGEST_PRIME * read for factor, read in zip(DIGEST_V, DIGEST_V_READ, strict=True))
    return (sum(k) + sum(v)) % DIGEST_PRIME


def digest_logits(code: int, vocab_size: int) -> tuple[float, ...]:
    """Return the logits that follow the code of the last token."""
    return tuple(
        ((code * (token + 1) + token * token) % LOGIT_MODULUS) / LOGIT_SCALE for token in range(vocab_size)
    )
