"""Claims about requests: what is refused, what is needed, how lengths move and when a request ends.

Guide: spec/04-requests.md
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from minisgl_spec.errors import ContractError, Refusal
from minisgl_spec.messages import Sampling
from minisgl_spec.requests import Config, Submission, accept, pages_for, refusal_of

from .oracle import lengths, outputs, request, scheduler, stepped, submit, submitted

CONFIG = Config(page_size=2, num_pages=4, max_seq_len=12, vocab_size=50)


def submission(ids: tuple[int, ...] = (1, 2), max_tokens: int = 1, **options: Any) -> Submission:
    return Submission(1, ids, max_tokens, **options)


@pytest.mark.parametrize(
    ("refused", "refusal"),
    [
        (submission(ids=()), Refusal("empty_prompt", 0, 1)),
        (submission(ids=(1, 50)), Refusal("token_out_of_range", 50, 50)),
        (submission(ids=(-1,)), Refusal("token_out_of_range", -1, 50)),
        (submission(max_tokens=0), Refusal("max_tokens_not_positive", 0, 1)),
        (submission(max_tokens=-3), Refusal("max_tokens_not_positive", -3, 1)),
        (submission(sampling=Sampling(temperature=-0.5)), Refusal("bad_temperature", -0.5, 0)),
        (submission(sampling=Sampling(temperature=math.inf)), Refusal("bad_temperature", math.inf, 0)),
        (submission(sampling=Sampling(top_k=-1)), Refusal("bad_top_k", -1, 0)),
        (submission(sampling=Sampling(top_p=0.0)), Refusal("bad_top_p", 0.0, 1)),
        (submission(sampling=Sampling(top_p=1.5)), Refusal("bad_top_p", 1.5, 1)),
        (submission(ids=(1,) * 12), Refusal("prompt_too_long", 12, 11)),
        (submission(ids=(1,) * 8, max_tokens=2), Refusal("larger_than_pool", 5, 4)),
    ],
)
def test_what_can_never_be_served_is_refused(refused: Submission, refusal: Refusal) -> None:
    """The refusal has the reason, the value and the limit. (04-requests.md#refusal)"""
    assert refusal_of(refused, CONFIG) == refusal


@pytest.mark.parametrize("sampling", [Sampling(temperature=math.nan), Sampling(top_p=math.nan)])
def test_a_number_that_is_none_is_refused(sampling: Sampling) -> None:
    """NaN is no temperature and no share of probability. (04-requests.md#refusal)"""
    refusal = refusal_of(submission(sampling=sampling), CONFIG)

    assert refusal is not None
    assert refusal.reason in ("bad_temperature", "bad_top_p")


@pytest.mark.parametrize(
    "accepted",
    [
        submission(ids=(49,)),
        submission(ids=(1,) * 8, max_tokens=1),
        submission(sampling=Sampling(temperature=0.7, top_k=1000, top_p=1.0, seed=-1)),
    ],
)
def test_what_just_fits_is_accepted(accepted: Submission) -> None:
    """Limits are inclusive where they say so. (04-requests.md#refusal)"""
    assert refusal_of(accepted, CONFIG) is None


def test_the_first_reason_is_the_one_told() -> None:
    """Reasons are checked in a fixed order. (04-requests.md#refusal)"""
    refusal = refusal_of(submission(ids=(), max_tokens=0), CONFIG)

    assert refusal == Refusal("empty_prompt", 0, 1)


def test_a_refusal_changes_nothing() -> None:
    """Nobody notices a refused request, and its uid is free. (04-requests.md#refusal)"""
    engine, untouched = scheduler(), scheduler()

    refusal = submit(engine, 1, (), 1)

    assert (refusal, engine, engine.is_idle()) == (Refusal("empty_prompt", 0, 1), untouched, True)
    assert submit(engine, 1, (1,), 1) is None


def test_two_live_requests_never_share_a_uid() -> None:
    """The second is refused; the first goes on. (04-requests.md#refusal)"""
    engine = submitted(scheduler(), (1, (1, 2), 1))

    refusal = submit(engine, 1, (7, 8), 1)

    assert refusal == Refusal("duplicate_uid", 1, "one request per uid at a time")
    assert outputs(engine, 1) == [(3, "length")]


def test_a_uid_is_free_again_when_its_request_has_ended() -> None:
    """Uids name requests that are there. (04-requests.md#refusal)"""
    engine = stepped(submitted(scheduler(), (1, (1, 2), 1)))

    assert submit(engine, 1, (1, 2), 1) is None


def test_max_tokens_is_clamped_in_our_copy_only() -> None:
    """Prompt and outputs fit max_seq_len; the caller's object stays as it was. (04-requests.md#refusal)"""
    asked = submission(ids=(1, 2, 3), max_tokens=100)
    config = Config(num_pages=64, max_seq_len=8, vocab_size=50)

    accepted = accept(asked, config)

    assert (accepted.max_tokens, accepted.max_device_len, asked.max_tokens) == (5, 8, 100)


@pytest.mark.parametrize(("prompt_len", "max_tokens", "pages"), [(4, 1, 2), (4, 2, 3), (1, 1, 1), (3, 2, 2)])
def test_the_last_token_needs_no_slot(prompt_len: int, max_tokens: int, pages: int) -> None:
    """ceil((prompt_len + max_tokens - 1) / page_size) pages in all. (04-requests.md#need)"""
    assert pages_for(prompt_len, max_tokens, 2) == pages


def test_a_step_moves_cached_len_to_device_len() -> None:
    """Prefill computes the prompt, each decode one token more. (04-requests.md#complete)"""
    engine = submitted(scheduler(), (1, (1, 2, 3), 3))

    assert [lengths(engine, 1), lengths(stepped(engine), 1), lengths(stepped(engine), 1)] == [
        (0, 3, 0),
        (3, 4, 3),
        (4, 5, 4),
    ]


def test_a_waiting_request_holds_nothing() -> None:
    """Row, pages and handle come with admission. (04-requests.md#state)"""
    view = request(submitted(scheduler(), (1, (1, 2, 3), 1)), 1)

    assert (view.phase, view.row, view.row_slots, view.handle) == ("waiting", None, (), None)


def test_the_stop_token_is_the_last_output() -> None:
    """EOS ends a request with `stop`, and is delivered. (04-requests.md#the-end)"""
    engine = submitted(scheduler(eos_ids=(5,)), (1, (1, 2, 3), 9))

    assert outputs(engine, 1) == [(4, None), (5, "stop")]


def test_a_stop_token_of_the_request_ends_it() -> None:
    """stop_ids are the request's own. (04-requests.md#the-end)"""
    engine = scheduler()
    submit(engine, 1, (1, 2, 3), 9, stop_ids=(6,))

    assert outputs(engine, 1) == [(4, None), (5, None), (6, "stop")]


def test_ignore_eos_ignores_eos_and_not_the_requests_own_stop_tokens() -> None:
    """The engine's EOS is ignored, stop_ids are not. (04-requests.md#the-end)"""
    engine = scheduler(eos_ids=(5,))
    submit(engine, 1, (1, 2, 3), 9, stop_ids=(6,), ignore_eos=True)

    assert outputs(engine, 1) == [(4, None), (5, None), (6, "stop")]


def test_a_stop_token_at_the_last_place_is_a_stop() -> None:
    """Of two reasons `stop` is the one told. (04-requests.md#the-end)"""
    engine = submitted(scheduler(eos_ids=(5,)), (1, (1, 2, 3), 2))

    assert outputs(engine, 1) == [(4, None), (5, "stop")]


def test_eos_in_a_prompt_means_nothing() -> None:
    """Only outputs end a request. (04-requests.md#the-end)"""
    engine = submitted(scheduler(eos_ids=(5,)), (1, (5, 1, 2), 1))

    assert outputs(engine, 1) == [(3, "length")]


@pytest.mark.parametrize(
    ("option", "value"), [("page_size", 0), ("num_pages", 0), ("num_rows", 0), ("token_budget", 0)]
)
def test_a_configuration_needs_something_of_everything(option: str, value: int) -> None:
    """A pool without pages serves nobody. (04-requests.md#state)"""
    with pytest.raises(ContractError, match=f"Config: need {option} >= 1; got {option}={value}"):
        Config.from_json({option: value})


def test_a_sequence_has_room_for_a_prompt_and_a_token() -> None:
    """max_seq_len is at least two. (04-requests.md#state)"""
    with pytest.raises(ContractError, match="need max_seq_len >= 2; got max_seq_len=1"):
        Config(max_seq_len=1)


def test_a_programs_configuration_may_say_more_than_the_schedulers() -> None:
    """Keys that are not the scheduler's are left alone. (04-requests.md#state)"""
    config = Config.from_json({"page_size": 4, "eos_ids": [1, 2], "streams": "inline"})

    assert config == Config(page_size=4, eos_ids=(1, 2))
