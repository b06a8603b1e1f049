"""The content judge of an engine: every executed batch is replayed on shadow memory.

A `Tape` is what the device must hold of one request, position by position: prompt, outputs told so
far and, ahead of them, what the model generates. A batch writes its positions first and reads all
of them after; every position it reads must hold exactly the tokens of its request up to there.

This file reads execution records only; what the host believes is judged by the invariants.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from minisgl_spec import contracts
from minisgl_spec.errors import Violation
from minisgl_spec.messages import ExecutedRequest, Execution
from minisgl_spec.shadow import DIGEST_BASE, DIGEST_PRIME, ShadowMemory, digest_mix, digest_read

Permitted = Callable[[Sequence[int], int], tuple[int, ...]]
"""The model for one request: (tokens so far, output index) -> the tokens it permits."""


class Tape:
    """The tokens of one request, the number of each prefix of them, and the digest's codes."""

    def __init__(self, shadow: ShadowMemory, prompt: Sequence[int], permitted: Permitted) -> None:
        self.shadow = shadow
        self.permitted = permitted
        self.prompt_len = len(prompt)
        self.ids: list[int] = []
        self.prefixes: list[int] = []
        self._codes: list[int] = []
        self._visible, self._weight = 0, 1
        for token in prompt:
            self.append(token)

    def append(self, token: int) -> None:
        """Add the next token."""
        prefix = self.prefixes[-1] if self.prefixes else self.shadow.EMPTY
        self.ids.append(token)
        self.prefixes.append(self.shadow.extend(prefix, token))

    def codes(self, start: int, end: int) -> tuple[int, ...]:
        """Return the digest's codes of positions start:end, folded no further than asked for."""
        while len(self._codes) < end:
            position = len(self._codes)
            code = digest_mix(self._visible, self.ids[position], position)
            self._codes.append(code)
            self._visible = (self._visible + digest_read(code) * self._weight) % DIGEST_PRIME
            self._weight = self._weight * DIGEST_BASE % DIGEST_PRIME
        return tuple(self._codes[start:end])

    def hold_output(self, uid: int, output_idx: int, token: int) -> Iterator[Violation]:
        """Take in an output that was told; it must be the one the device goes on with."""
        position = self.prompt_len + output_idx
        if position == len(self.ids):
            self.append(token)
        elif self.ids[position] != token:
            outputs, device = self.ids[self.prompt_len : position], (self.ids[position],)
            for fact in contracts.tokens_are_the_models(uid, outputs, device, token):
                yield Violation("tokens_are_the_models", f"{fact}, and the device went on with that")

    def hold_input(self, uid: int, position: int, token: int) -> Iterator[Violation]:
        """Hold a token that the device read to the request's own, ahead of what was told if need be."""
        if position < len(self.ids):
            expected: tuple[int, ...] = (self.ids[position],)
        else:
            expected = self.permitted(tuple(self.ids), position - self.prompt_len)
            self.append(token if token in expected else expected[0])
        if token not in expected:
            fact = f"request {uid} read token {token} at position {position}; its tokens there: {expected}"
            yield Violation("reads_hold_their_prefix", fact)


def judge_executions(
    executions: Iterable[Execution], tapes: dict[int, Tape], shadow: ShadowMemory
) -> Iterator[Violation]:
    """Replay executed batches, in the device's order, on shadow memory."""
    for execution in executions:
        known = [request for request in execution.requests if request.uid in tapes]
        for request in execution.requests:
            if request.uid not in tapes:
                fact = f"batch {execution.batch} holds request {request.uid}, which was never accepted"
                yield Violation("in_flight_requests_are_held", fact)
        for request in known:
            yield from _write(request, tapes[request.uid], shadow)
        for request in known:
            yield from _read(request, tapes[request.uid], shadow)
        for request in known:
            yield from _hold_codes(request, tapes[request.uid])


def _write(request: ExecutedRequest, tape: Tape, shadow: ShadowMemory) -> Iterator[Violation]:
    start = request.cached_len
    for position, token in enumerate(request.tokens, start):
        if position > len(tape.ids):
            fact = f"request {request.uid} computed position {position} of {len(tape.ids)} known tokens"
            yield Violation("reads_hold_their_prefix", fact)
            return
        yield from tape.hold_input(request.uid, position, token)
        shadow.write(request.slots[position], tape.prefixes[position])


def _read(request: ExecutedRequest, tape: Tape, shadow: ShadowMemory) -> Iterator[Violation]:
    for position, (slot, prefix) in enumerate(zip(request.slots, tape.prefixes, strict=False)):
        if shadow.read(slot) != prefix:
            found = shadow.describe_mismatch(slot, prefix)
            for fact in contracts.reads_hold_their_prefix(request.uid, position, slot, found):
                yield Violation("reads_hold_their_prefix", fact)


def _hold_codes(request: ExecutedRequest, tape: Tape) -> Iterator[Violation]:
    start, end = request.cached_len, request.cached_len + len(request.tokens)
    if request.codes is None or end > len(tape.ids):
        return
    expected = tape.codes(start, end)
    for fact in contracts.digest_is_the_models(request.uid, range(start, end), request.codes, expected):
        yield Violation("digest_is_the_models", fact)
