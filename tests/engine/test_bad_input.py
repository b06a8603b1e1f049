"""Claims about what a caller may get wrong: each is refused with its value, and nothing else is disturbed.

A request is running while the others are refused; it gets its tokens.
Guide: tests/README.md
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from minisgl_ref.checks import CheckLevel
from minisgl_ref.config import EngineConfig
from minisgl_ref.testing import EngineUnderTest, make_engine_target
from minisgl_spec.errors import ContractError, Refusal
from minisgl_spec.messages import Sampling
from minisgl_spec.requests import Config, Submission, refusal_of

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


HUGE = 10**400
NO_NUMBERS: list[tuple[dict[str, Any], str, object]] = [
    ({"ids": (1, 2.5)}, "bad_token", 2.5),
    ({"ids": (1, 2.0)}, "bad_token", 2.0),
    ({"ids": (1, True)}, "bad_token", True),
    ({"ids": (1, "2")}, "bad_token", "2"),
    ({"ids": (1, None)}, "bad_token", None),
    ({"max_tokens": 2.5}, "bad_max_tokens", 2.5),
    ({"max_tokens": math.nan}, "bad_max_tokens", math.nan),
    ({"max_tokens": True}, "bad_max_tokens", True),
    ({"max_tokens": None}, "bad_max_tokens", None),
    ({"temperature": HUGE}, "bad_temperature", HUGE),
    ({"temperature": "hot"}, "bad_temperature", "hot"),
    ({"temperature": True}, "bad_temperature", True),
    ({"top_k": 1.5}, "bad_top_k", 1.5),
    ({"top_k": math.inf}, "bad_top_k", math.inf),
    ({"top_p": HUGE}, "bad_top_p", HUGE),
    ({"top_p": None}, "bad_top_p", None),
    ({"seed": 1.5}, "bad_seed", 1.5),
    ({"seed": False}, "bad_seed", False),
    ({"stop_ids": (1, 2.5)}, "bad_stop_id", 2.5),
]


@pytest.mark.parametrize(("wrong", "reason", "value"), NO_NUMBERS)
def test_what_is_no_number_of_its_kind_is_refused_by_engine_and_oracle(
    wrong: dict[str, Any], reason: str, value: object
) -> None:
    """At the door, with its value, in the same words; nothing raises in a step. (04-requests.md#refusal)"""
    target = busy_engine()
    before = target.view()
    asked = {"uid": 3, "ids": (1, 2), "max_tokens": 2, **wrong}

    refused = target.submit(**asked)

    assert refused is not None
    assert (refused.reason, str(refused.value)) == (reason, str(value))
    assert str(refused) == str(oracle_refuses(asked))
    assert target.view() == before
    assert run_until_idle(target)[1] == [*outputs(target, PROMPT, 4)[1:], "length"]


def oracle_refuses(asked: dict[str, Any]) -> Refusal | None:
    """What the oracle says to the same submission."""
    sampling = Sampling(
        **{name: asked[name] for name in ("temperature", "top_k", "top_p", "seed") if name in asked}
    )
    submission = Submission(
        3, asked["ids"], asked["max_tokens"], asked.get("stop_ids", ()), sampling=sampling
    )
    return refusal_of(submission, Config(vocab_size=VOCAB_SIZE))


@pytest.mark.parametrize("whole", [int, np.int64, np.int32, np.uint8])
def test_whole_numbers_of_numpy_are_whole_numbers(whole: Any) -> None:
    """They are taken as Python's own. (04-requests.md#refusal)"""
    target = engine()
    ids = np.array([200, 1, 2], dtype=np.uint8) % 16

    refused = target.submit(
        1, ids, whole(4), stop_ids=(whole(99),), temperature=np.float32(0.5), top_k=whole(3), seed=whole(7)
    )

    sampling = Sampling(0.5, 3, 1.0, 7)
    assert refused is None
    assert run_until_idle(target) == {1: [*outputs(target, ids.tolist(), 4, sampling), "length"]}


@pytest.mark.parametrize("top_k", [2**31, 2**63, 2**70])
def test_a_top_k_above_the_vocabulary_keeps_all_of_it(top_k: int) -> None:
    """No number of that size ever reaches a kernel. (08-numerics.md#sampling)"""
    target = engine()

    refused = target.submit(1, PROMPT, 4, temperature=1.0, top_k=top_k, seed=3)

    assert refused is None
    assert run_until_idle(target) == {1: [*outputs(target, PROMPT, 4, Sampling(1.0, 0, 1.0, 3)), "length"]}


@pytest.mark.parametrize("max_tokens", [2**31, 2**63, 10**400])
def test_max_tokens_of_any_size_are_clamped(max_tokens: int) -> None:
    """To what is left of the longest sequence. (04-requests.md#refusal)"""
    target = engine(max_seq_len=8)

    refused = target.submit(1, PROMPT, max_tokens)

    assert refused is None
    assert run_until_idle(target) == {1: [*outputs(target, PROMPT, 5), "length"]}


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


@pytest.mark.parametrize("streams", ["inline", "simulated"])
def test_a_cuda_device_has_its_own_streams(streams: str) -> None:
    """On others nobody would wait for a copy to the host. (07-overlap.md#streams)"""
    with pytest.raises(ContractError) as refused:
        EngineConfig(device="cuda:0", streams=streams)

    assert str(refused.value) == (
        f"EngineConfig: need streams=cuda on a CUDA device; got streams={streams}, device=cuda:0. "
        "Leave streams out."
    )


@pytest.mark.parametrize("streams", ["cuda", None])
def test_a_cuda_device_with_cuda_streams_is_a_configuration(streams: str | None) -> None:
    """Whether there is one is asked when the engine is built. (config.py)"""
    assert EngineConfig(device="cuda", streams=streams).streams == streams


@pytest.mark.parametrize("value", [CheckLevel.FULL, 2, "full", "FULL"])
def test_a_check_level_may_be_given_by_number_and_name(value: Any) -> None:
    """It is a CheckLevel from then on. (config.py)"""
    assert EngineConfig(check_level=value).check_level is CheckLevel.FULL


@pytest.mark.parametrize("value", [3, -1, "most", True, None, 2.0])
def test_what_is_no_check_level_is_refused(value: Any) -> None:
    """By name, with its value. (config.py)"""
    with pytest.raises(ContractError) as refused:
        EngineConfig(check_level=value)

    assert str(refused.value) == (
        f"EngineConfig: need a check_level of OFF, LOCAL, FULL; got check_level={value!r}."
    )


@pytest.mark.parametrize(
    ("name", "value"), [("overlap", 1), ("overlap", "no"), ("device", 0), ("device", None)]
)
def test_overlap_is_a_bool_and_a_device_has_a_name(name: str, value: Any) -> None:
    """The name and the value are in the error. (config.py)"""
    with pytest.raises(ContractError) as refused:
        EngineConfig(**{name: value})

    assert refused.value.got == {name: repr(value)}


@pytest.mark.parametrize(
    "wrong", [{"vocab_size": 16}, {"max_seq_len": 513}, {"eos_ids": (64,)}, {"eos_ids": (-1,)}]
)
def test_a_program_that_takes_the_tiny_llama_for_another_is_refused(wrong: dict[str, Any]) -> None:
    """Oracle and engine would speak of two models. (testing.py)"""
    with pytest.raises(ContractError) as refused:
        make_engine_target({**CONFIG, "model": "tiny-llama", "vocab_size": 64, **wrong}, CheckLevel.OFF)

    assert refused.value.got == {"vocab_size": 64, "max_seq_len": 24, "eos_ids": (), **wrong}


def test_an_unknown_model_of_a_program_is_refused() -> None:
    """By its name. (testing.py)"""
    with pytest.raises(ContractError) as refused:
        make_engine_target({**CONFIG, "model": "huge"}, CheckLevel.OFF)

    assert refused.value.got == {"model": "'huge'"}
