"""What the scheduler moves: sampling parameters, requests and batches.

A request's lengths are those of the chapter: KV is present, or being written by a launched batch,
in [0, cached_len); `device_len` tokens are known after its next step. `written_len` follows when a
batch has been processed. Its row is kept as page numbers; its tokens as a key, four bytes each.

Plain state: nothing here allocates, locks or launches.
Chapter: spec/04-requests.md
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real

from minisgl_ref.kvcache.base import TOKEN_BYTES, Handle
from minisgl_spec.errors import Refusal
from minisgl_spec.messages import LENGTH, STOP, Sampling
from minisgl_spec.units import div_ceil
from minisgl_spec.views import WAITING

WHOLE = "a whole number"
"""The limit in a refusal of what is none."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How many tokens to generate and how to choose them.

    max_tokens:      outputs at most, the stop token included.
    temperature:     0 is greedy.
    top_k:           tokens kept, 0 keeps all; then top_p of their probability.
    stop_token_ids:  end the request like the model's EOS tokens do.
    ignore_eos:      the model's EOS tokens do not end the request; stop_token_ids still do.
    seed:            of the request's own random numbers.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0

    @property
    def sampling(self) -> Sampling:
        """The part that chooses a token."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.seed)


def malformed(ids: Sequence[int], params: SamplingParams) -> Refusal | None:
    """Return which part of a submission is no number of the right kind, or None.

    Whole numbers are what Python takes as an index, numpy's too; a bool is none, and 2.0 is none. A
    real number has to fit a float.

    Spec: 04-requests.md#refusal
    """
    for token in ids:
        if _whole(token) is None:
            return Refusal("bad_token", token, WHOLE)
    if _whole(params.max_tokens) is None:
        return Refusal("bad_max_tokens", params.max_tokens, WHOLE)
    if not math.isfinite(_real(params.temperature)):
        return Refusal("bad_temperature", params.temperature, 0)
    if _whole(params.top_k) is None:
        return Refusal("bad_top_k", params.top_k, 0)
    if not math.isfinite(_real(params.top_p)):
        return Refusal("bad_top_p", params.top_p, 1)
    if _whole(params.seed) is None:
        return Refusal("bad_seed", params.seed, WHOLE)
    for token in params.stop_token_ids:
        if _whole(token) is None:
            return Refusal("bad_stop_id", token, WHOLE)
    return None


def plain_params(params: SamplingParams) -> SamplingParams:
    """Return parameters that are not malformed with Python's own numbers in them; a copy."""
    return SamplingParams(
        max_tokens=operator.index(params.max_tokens),
        temperature=float(params.temperature),
        top_k=operator.index(params.top_k),
        top_p=float(params.top_p),
        stop_token_ids=tuple(map(operator.index, params.stop_token_ids)),
        ignore_eos=bool(params.ignore_eos),
        seed=operator.index(params.seed),
    )


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def key_of(ids: Sequence[int]) -> bytes:
    """Return the key of a token sequence: four bytes per token, native order."""
    return array("i", ids).tobytes()


@dataclass(eq=False, slots=True)
class Req:
    """One accepted request, from submission to release.

    pages:      the row's mapping: position i is on pages[i // page_size].
    in_flight:  numbers of the launched batches that hold it and are not processed.
    """

    uid: int
    key: bytearray  # prompt and outputs known to the host
    prompt_len: int
    max_tokens: int  # ours, clamped
    sampling: Sampling
    stop_ids: frozenset[int]  # EOS included unless ignored
    device_len: int
    phase: str = WAITING
    cached_len: int = 0
    written_len: int = 0
    admitted_len: int = 0  # tokens found in the cache at admission
    row: int = -1
    pages: list[int] = field(default_factory=list)
    handle: Handle | None = None
    in_flight: list[int] = field(default_factory=list)

    @property
    def max_device_len(self) -> int:
        """Tokens of prompt and outputs together, at most."""
        return self.prompt_len + self.max_tokens

    @property
    def remain_len(self) -> int:
        """Tokens that may still be generated after those launched."""
        return self.max_device_len - self.device_len

    @property
    def can_decode(self) -> bool:
        """Whether another token may be generated after those launched."""
        return self.remain_len > 0

    @property
    def ids_len(self) -> int:
        """Tokens known to the host."""
        return len(self.key) // TOKEN_BYTES

    @property
    def output_len(self) -> int:
        """Outputs known to the host."""
        return self.ids_len - self.prompt_len

    def pages_in_all(self, page_size: int) -> int:
        """Pages the request takes at most: its last token is never stored."""
        return div_ceil(self.max_device_len - 1, page_size)

    def pages_needed(self, page_size: int) -> int:
        """Pages the request may still take."""
        return self.pages_in_all(page_size) - len(self.pages)

    def complete_one(self) -> None:
        """Move the lengths past a launched step.

        Spec: 04-requests.md#complete
        """
        self.cached_len = self.device_len
        self.device_len += 1

    def append(self, token: int) -> None:
        """Take in an output token."""
        self.key += array("i", (token,)).tobytes()

    def finish_reason_after(self, token: int) -> str | None:
        """Return why the request ends with `token`, its newest output, or None.

        Spec: 07-overlap.md#finishing
        """
        if token in self.stop_ids:
            return STOP
        return LENGTH if self.output_len >= self.max_tokens else None


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One request of a batch, with the lengths it was launched with."""

    req: Req
    cached_len: int
    device_len: int
    sampled: bool  # False for a chunk that does not end its prompt


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, numbered in order of launch."""

    number: int
    phase: str
    entries: tuple[BatchEntry, ...]
