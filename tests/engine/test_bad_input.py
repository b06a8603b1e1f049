"""Claims about what a caller may get wrong: each is refused with its value, and nothing else is disturbed.

A request is running while the others are refused; it gets its tokens.
Guide: tests/README.md
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from minisgl_ref.checks import CheckLevel
from minisgl_ref.config import EngineConfig
from minisgl_ref.testing import EngineUnderTest, make_engine_target
from minisgl_spec.errors import ContractError, Refusal

from .engines import CONFIG, VOCAB_SIZE, engine, is_empty, outputs, run_until_idle, steps

RUNNING, PROMPT = 1, (1, 2, 3)


def busy_engine() -> EngineUnderTest:
    """One request is decoding, one is waiting for a row; pages of two tokens, six of them."""
    target = engine(page_size=2, num_pages=6, max_seq_len=16, num_rows=1)
    target.submit(RUNNING, PROMPT, 4)
    target.submit(2, (4, 5), 2)
    steps(target, 2)
    return target


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"uid": 1}, Refusal("duplicate_uid", 1, "one request per uid at a time")),
        ({"uid": 2}, Refusal("duplicate_uid", 2, "one request per uid at a time")),
        ({"ids": ()}, Refusal("empty_prompt", 0, 1)),
        ({"ids": (1, VOCAB_SIZE)}, Refusal("token_out_of_range", VOCAB_SIZE, VOCAB_SIZE)),
        ({"ids": (1, -1, 99)}, Refusal("token_out_of_range", -1, VOCAB_SIZE)),
        ({"ids": (2**40,)}, Refusal("token_out_of_range", 2**40, VOCAB_SIZE)),
        ({"max_tokens": 0}, Refusal("max_tokens_not_positive", 0, 1)),
        ({"max_tokens": -7}, Refusal("max_tokens_not_positive", -7, 1)),
        ({"temperature": -0.5}, Refusal("bad_temperature", -0.5, 0)),
        ({"temperature": math.inf}, Refusal("bad_temperature", math.inf, 0)),
        ({"top_k": -1}, Refusal("bad_top_k", -1, 0)),
        ({"top_p": 0.0}, Refusal("bad_top_p", 0.0, 1)),
        ({"top_p": 1.5}, Refusal("bad_top_p", 1.5, 1)),
        ({"ids": (1,) * 16}, Refusal("prompt_too_long", 16, 15)),
        ({"ids": (1,) * 15, "max_tokens": 99}, Refusal("larger_than_pool", 8, 6)),
        ({"ids": (1,) * 8, "max_tokens": 6}, Refusal("larger_than_pool", 7, 6)),
    ],
    ids=lambda value: value.reason if isinstance(value, Refusal) else "",
)
def test_a_bad_submission_is_refused_with_its_value_and_disturbs_nothing(
    wrong: dict[str, Any], refusal: Refusal
) -> None:
    """Value and limit are in the refusal; both other requests get their tokens. (04-requests.md#refusal)"""
    target = busy_engine()
    before = target.view()

    refused = target.submit(**{"uid": 3, "ids": (1, 2), "max_tokens": 2, **wrong})

    assert refused == refusal
    assert target.view() == before
    assert run_until_idle(target) == {
        1: [*outputs(target, PROMPT, 4)[1:], "length"],
        2: [*outputs(target, (4, 5), 2), "length"],
    }
    assert is_empty(target)


@pytest.mark.parametrize(("name", "reason"), [("temperature", "bad_temperature"), ("top_p", "bad_top_p")])
def test_nan_is_refused(name: str, reason: str) -> None:
    """NaN compares with nothing, so it is told by its reason and shown. (04-requests.md#refusal)"""
    target = busy_engine()
    before = target.view()

    refused = target.submit(3, (1, 2), 2, **{name: math.nan})  # type: ignore[arg-type]

    assert refused is not None
    assert (refused.reason, str(refused.value)) == (reason, "nan")
    assert target.view() == before


def test_a_refusal_says_everything_in_one_line() -> None:
    """Reason, value, limit. (04-requests.md#refusal)"""
    refused = engine().submit(1, (1,) * 30, 2)

    assert str(refused) == "prompt_too_long: got 30, limit 23"


EVERYTHING_WRONG = {"ids": (1, 99) * 20, "max_tokens": 0, "temperature": -1.0, "top_k": -1, "top_p": 2.0}


@pytest.mark.parametrize(
    ("put_right", "reason"),
    [
        ({}, "token_out_of_range"),
        ({"ids": (1,) * 40}, "max_tokens_not_positive"),
        ({"ids": (1,) * 40, "max_tokens": 1}, "bad_temperature"),
        ({"ids": (1,) * 40, "max_tokens": 1, "temperature": 0.0}, "bad_top_k"),
        ({"ids": (1,) * 40, "max_tokens": 1, "temperature": 0.0, "top_k": 0}, "bad_top_p"),
        (
            {"ids": (1,) * 40, "max_tokens": 1, "temperature": 0.0, "top_k": 0, "top_p": 1.0},
            "prompt_too_long",
        ),
    ],
)
def test_of_several_mistakes_the_first_in_the_order_of_the_chapter_is_named(
    put_right: dict[str, Any], reason: str
) -> None:
    """Prompt, then max_tokens, then sampling, then size. (04-requests.md#refusal)"""
    refused = engine().submit(1, **{**EVERYTHING_WRONG, **put_right})

    assert refused is not None
    assert refused.reason == reason


def test_the_largest_request_that_fits_is_served() -> None:
    """Twelve positions are stored on six pages; the last token needs none. (04-requests.md#need)"""
    target = engine(page_size=2, num_pages=6, max_seq_len=16, num_rows=1)

    refused = target.submit(1, (1,) * 8, 5)

    assert refused is None
    assert run_until_idle(target) == {1: [*outputs(target, (1,) * 8, 5), "length"]}


@pytest.mark.parametrize("uid", [3, -1])
def test_an_abort_of_an_unknown_uid_is_refused_and_disturbs_nothing(uid: int) -> None:
    """The uid is in the refusal. (06-decode-and-release.md#abort)"""
    target = busy_engine()
    before = target.view()

    refused = target.abort(uid)

    assert refused == Refusal("unknown_uid", uid, "a request that has not ended")
    assert target.view() == before


def test_a_reset_is_refused_while_a_request_runs_and_disturbs_nothing() -> None:
    """Its prefix is locked. (03-locks-and-eviction.md#reset)"""
    target = busy_engine()
    before = target.view()

    with pytest.raises(ContractError) as refused:
        target.reset()

    assert refused.value.need == "no locked handle"
    assert refused.value.got == {"locked_handles": 1, "protected_size": 2}
    assert target.view() == before


# -- configurations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["page_size", "num_pages", "num_rows", "token_budget", "max_seq_len", "num_threads"]
)
@pytest.mark.parametrize("value", [0, -4, 1.5, True, "8"])
def test_a_measure_of_an_engine_is_a_positive_whole_number(name: str, value: object) -> None:
    """The name and the value are in the error. (config.py)"""
    with pytest.raises(ContractError) as refused:
        EngineConfig(**{name: value})  # type: ignore[arg-type]

    assert refused.value.need == f"a whole number {name} >= 1"
    assert refused.value.got == {name: value}


@pytest.mark.parametrize(
    ("name", "value", "need"),
    [
        ("cache", "lru", "cache in ('radix', 'naive')"),
        ("dtype", "int8", "dtype in ('float32', 'bfloat16', 'float16')"),
        ("streams", "slow", "streams in ('inline', 'simulated', 'cuda', None)"),
    ],
)
def test_a_choice_of_an_engine_is_one_of_the_known(name: str, value: str, need: str) -> None:
    """The name, the value and what there is are in the error. (config.py)"""
    with pytest.raises(ContractError) as refused:
        EngineConfig(**{name: value})  # type: ignore[arg-type]

    assert str(refused.value) == f"EngineConfig: need {need}; got {name}={value!r}."


def test_cuda_streams_need_a_cuda_device() -> None:
    """And the error says what to do. (config.py)"""
    with pytest.raises(ContractError) as refused:
        EngineConfig(streams="cuda")

    assert str(refused.value) == (
        "EngineConfig: need a CUDA device for streams=cuda; got device=cpu. Leave streams out."
    )


def test_an_unknown_model_of_a_program_is_refused() -> None:
    """By its name. (testing.py)"""
    with pytest.raises(ContractError) as refused:
        make_engine_target({**CONFIG, "model": "huge"}, CheckLevel.OFF)

    assert refused.value.got == {"model": "'huge'"}
