"""Requests: what is asked for, what is refused, and how a request's lengths move.

A request has `cached_len` tokens whose KV is present or being written, and `device_len` tokens
known after its next step; `extend_len = device_len - cached_len` are computed by that step. A
launched step moves `cached_len` up to `device_len`; `written_len` follows when the step has been
processed. The last token of a request is never stored.

Nothing here allocates, locks or schedules.
Chapter: spec/04-requests.md
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from minisgl_spec.errors import ContractError, Refusal
from minisgl_spec.messages import GREEDY, LENGTH, STOP, Sampling
from minisgl_spec.radix_tree import Handle
from minisgl_spec.units import Page, Row, Slot, Token, Uid, align_up, div_ceil, slots_to_pages
from minisgl_spec.views import WAITING, RequestView


@dataclass(frozen=True)
class Config:
    """What a scheduler is built with; every length in tokens."""

    page_size: int = 1
    num_pages: int = 64
    num_rows: int = 4
    max_seq_len: int = 64
    token_budget: int = 64  # prefill tokens per step
    cache: str = "radix"
    overlap: bool = False
    vocab_size: int = 16
    eos_ids: tuple[Token, ...] = ()

    def __post_init__(self) -> None:
        for name in ("page_size", "num_pages", "num_rows", "token_budget", "vocab_size"):
            if getattr(self, name) < 1:
                raise ContractError("Config", f"{name} >= 1", {name: getattr(self, name)})
        if self.max_seq_len < 2:
            raise ContractError("Config", "max_seq_len >= 2", {"max_seq_len": self.max_seq_len})

    @property
    def row_width(self) -> int:
        """Positions of a row: whole pages, at least max_seq_len."""
        return align_up(self.max_seq_len, self.page_size)

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Config:
        """Build a configuration from a program's header; keys that are not the scheduler's are left alone."""
        known = {name: config[name] for name in cls.__dataclass_fields__ if name in config}
        return cls(**{**known, "eos_ids": tuple(config.get("eos_ids", ()))})


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as it was asked for; ours to keep, the caller's object is never changed."""

    uid: Uid
    ids: tuple[Token, ...]
    max_tokens: int
    stop_ids: tuple[Token, ...] = ()
    ignore_eos: bool = False
    sampling: Sampling = GREEDY


def pages_for(prompt_len: int, max_tokens: int, page_size: int) -> int:
    """Return the pages a request takes in all: the last token is never stored."""
    return div_ceil(prompt_len + max_tokens - 1, page_size)


def is_whole(value: object) -> bool:
    """Say whether a value is a whole number: what Python takes as an index, and no bool. 2.0 is none."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Say whether a value is a number, finite, and fits a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def malformed(submission: Submission) -> Refusal | None:
    """Return which part of a submission is no number of the right kind, or None.

    Spec: 04-requests.md#refusal
    """
    sampling = submission.sampling
    whole = "a whole number"
    parts = [
        *(("bad_token", token, is_whole, whole) for token in submission.ids),
        ("bad_max_tokens", submission.max_tokens, is_whole, whole),
        ("bad_temperature", sampling.temperature, is_real, 0),
        ("bad_top_k", sampling.top_k, is_whole, 0),
        ("bad_top_p", sampling.top_p, is_real, 1),
        ("bad_seed", sampling.seed, is_whole, whole),
        *(("bad_stop_id", token, is_whole, whole) for token in submission.stop_ids),
    ]
    wrong = (Refusal(reason, value, limit) for reason, value, is_right, limit in parts if not is_right(value))
    return next(wrong, None)


def refusal_of(submission: Submission, config: Config) -> Refusal | None:
    """Return why a submission cannot be served by this engine at any time, or None.

    Spec: 04-requests.md#refusal
    """
    ids, sampling = submission.ids, submission.sampling
    if (wrong := malformed(submission)) is not None:
        return wrong
    if not ids:
        return Refusal("empty_prompt", 0, 1)
    for token in ids:
        if not 0 <= token < config.vocab_size:
            return Refusal("token_out_of_range", token, config.vocab_size)
    if submission.max_tokens < 1:
        return Refusal("max_tokens_not_positive", submission.max_tokens, 1)
    if sampling.temperature < 0:
        return Refusal("bad_temperature", sampling.temperature, 0)
    if sampling.top_k < 0:
        return Refusal("bad_top_k", sampling.top_k, 0)
    if not 0 < sampling.top_p <= 1:
        return Refusal("bad_top_p", sampling.top_p, 1)
    if len(ids) >= config.max_seq_len:
        return Refusal("prompt_too_long", len(ids), config.max_seq_len - 1)
    need = pages_for(len(ids), clamped_max_tokens(submission, config), config.page_size)
    if need > config.num_pages:
        return Refusal("larger_than_pool", need, config.num_pages)
    return None


def clamped_max_tokens(submission: Submission, config: Config) -> int:
    """Return max_tokens, cut so that prompt and outputs fit max_seq_len."""
    return min(submission.max_tokens, config.max_seq_len - len(submission.ids))


@dataclass(eq=False)
class Request:
    """One accepted request, from submission to release."""

    submission: Submission
    max_tokens: int  # clamped
    ids: tuple[Token, ...]  # prompt and outputs known to the host
    phase: str = WAITING
    cached_len: int = 0
    device_len: int = 0
    written_len: int = 0
    admitted_len: int = 0  # tokens found in the cache at admission
    row: Row | None = None
    row_slots: tuple[Slot, ...] = ()
    handle: Handle | None = None
    batches: list[int] = field(default_factory=list)  # launched, not processed

    @property
    def uid(self) -> Uid:
        """The request's id."""
        return self.submission.uid

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.submission.ids)

    @property
    def max_device_len(self) -> int:
        """Tokens of prompt and outputs together, at most."""
        return self.prompt_len + self.max_tokens

    @property
    def output_len(self) -> int:
        """Outputs known to the host."""
        return len(self.ids) - self.prompt_len

    @property
    def can_decode(self) -> bool:
        """Whether another token may be generated after those already launched."""
        return self.device_len < self.max_device_len

    def pages_still_needed(self, page_size: int) -> int:
        """Return the pages the request may still take."""
        return pages_for(self.prompt_len, self.max_tokens, page_size) - len(self.row_slots) // page_size

    def private_pages(self, page_size: int) -> tuple[Page, ...]:
        """Return the pages of the row that the handle does not cover."""
        covered = self.handle.prefix_len if self.handle is not None else 0
        return slots_to_pages(self.row_slots[covered:], page_size)

    def complete_one(self) -> None:
        """Move the lengths past a launched step.

        Spec: 04-requests.md#complete
        """
        self.cached_len = self.device_len
        self.device_len += 1

    def finish_reason_after(self, token: Token, eos_ids: tuple[Token, ...]) -> str | None:
        """Return why the request ends with `token`, its newest output, or None.

        Decided by the outputs known, never by lengths of a later step. (07-overlap.md#finishing)
        """
        stops = (
            self.submission.stop_ids if self.submission.ignore_eos else (*eos_ids, *self.submission.stop_ids)
        )
        if token in stops:
            return STOP
        return LENGTH if self.output_len == self.max_tokens else None

    def view(self) -> RequestView:
        """Return a picture of the request."""
        return RequestView(
            uid=self.uid,
            phase=self.phase,
            ids=self.ids,
            prompt_len=self.prompt_len,
            cached_len=self.cached_len,
            device_len=self.device_len,
            max_device_len=self.max_device_len,
            written_len=self.written_len,
            row=self.row,
            row_slots=self.row_slots,
            handle=self.handle.view() if self.handle is not None else None,
            num_in_flight=len(self.batches),
        )


def accept(submission: Submission, config: Config) -> Request:
    """Return the request that an acceptable submission becomes."""
    return Request(
        submission=submission,
        max_tokens=clamped_max_tokens(submission, config),
        ids=submission.ids,
        device_len=len(submission.ids),
    )
