"""What crosses an engine's boundary: sampling parameters, replies, and records of executed batches.

A reply carries one token or ends a request. An execution record says what a batch really read and
wrote on the device when it ran; the content judge replays it on shadow memory.

Plain values, no behaviour.
Chapter: spec/04-requests.md
"""

from __future__ import annotations

from dataclasses import dataclass

from minisgl_spec.units import Row, Slot, Token, Uid

STOP, LENGTH, ABORT = "stop", "length", "abort"
"""finish_reason of a terminal reply."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen from the logits; temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0  # tokens kept, 0 keeps all
    top_p: float = 1.0
    seed: int = 0


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Reply:
    """One token of a request, or its end; the terminal reply is the one with a finish_reason."""

    uid: Uid
    token: Token | None  # None only in the terminal reply of an abort
    finish_reason: str | None
    cached_len: int  # tokens found in the cache at admission


@dataclass(frozen=True, slots=True)
class ExecutedRequest:
    """What one request of an executed batch read from the device and wrote to it."""

    uid: Uid
    row: Row
    cached_len: int
    tokens: tuple[Token, ...]  # read from token_pool[row, cached_len:device_len]
    slots: tuple[Slot, ...]  # read from page_table[row, 0:device_len]; the last len(tokens) are written
    codes: tuple[int, ...] | None  # digest codes written, one per token; None without the digest model


@dataclass(frozen=True, slots=True)
class Execution:
    """One executed batch; executions are listed in the order the device ran them."""

    batch: int
    requests: tuple[ExecutedRequest, ...]
