"""`LLM.generate`: prompts of every kind in, outputs in order, and nothing left behind however it ends.

Guide: tests/README.md
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minisgl_ref import LLM, EngineConfig, Output, Piece, SamplingParams
from minisgl_ref.build import choose_backend
from minisgl_ref.checks import CheckLevel
from minisgl_ref.models.digest import DigestModel
from minisgl_spec.errors import BackendUnavailable, ContractError, InvariantError, Refusal, Violation
from minisgl_spec.messages import Reply

from .tiny_chat import END, MAX_POSITION, VOCAB_SIZE, is_untouched, save_tiny_llama, scripted, tiny_tokenizer

LETTERS = list(range(100, 180))
CHAT = [{"role": "system", "content": "be quick"}, {"role": "user", "content": "the tree?"}]
MANY_BYTES = "naïve 日本語 🙂 é"


def digest_llm(**config: Any) -> LLM:
    """An LLM whose model notices KV that is missing or wrong; every invariant is checked at every step."""
    measures: dict[str, Any] = {"page_size": 2, "num_pages": 40, "num_rows": 3, "token_budget": 8}
    measures |= {"backend": "torch", "check_level": CheckLevel.FULL, **config}
    return LLM.from_model(DigestModel(16, (), 64, choose_backend("torch")), None, EngineConfig(**measures))


class TinyLlama:
    """A folder with a random Llama, and the same weights to judge with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.judge = save_tiny_llama(folder)

    def llm(self, **config: Any) -> LLM:
        measures = {"page_size": 4, "num_pages": 64, "num_rows": 4, "token_budget": 16}
        return LLM(self.folder, EngineConfig(**{**measures, "check_level": CheckLevel.FULL, **config}))

    def greedy(self, ids: list[int], count: int) -> tuple[int, ...]:
        grown = list(ids)
        for _ in range(count):
            with torch.no_grad():
                grown.append(int(self.judge(torch.tensor([grown]), use_cache=False).logits[0, -1].argmax()))
        return tuple(grown[len(ids) :])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyLlama:
    return TinyLlama(tmp_path_factory.mktemp("tiny-llama"))


def texts(pieces: list[Piece], index: int) -> str:
    return "".join(piece.text for piece in pieces if piece.index == index)


def tokens(pieces: list[Piece], index: int) -> tuple[int, ...]:
    return tuple(piece.token for piece in pieces if piece.index == index and piece.token is not None)


# -- what comes back -------------------------------------------------------------------------------


def test_importing_the_package_imports_no_torch() -> None:
    """Names are looked up when they are used. (CONTRIBUTING.md)"""
    code = "import sys, minisgl_ref; minisgl_ref.SamplingParams; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=_environment(), capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("False\n", "")


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(path for path in sys.path if path)}


def test_text_and_ids_and_a_chat_are_prompts_and_outputs_keep_their_order(tiny: TinyLlama) -> None:
    """Each output is what transformers says without a cache, in its prompt's place. (04-requests.md)"""
    llm = tiny.llm()
    assert llm.tokenizer is not None
    text, chat = llm.tokenizer.encode("the lazy dog"), llm.tokenizer.encode_chat(CHAT)

    outputs = llm.generate(["the lazy dog", [5, 6, 7], CHAT], SamplingParams(max_tokens=6, ignore_eos=True))

    assert [(output.prompt_len, output.output_ids) for output in outputs] == [
        (len(ids), tiny.greedy(ids, 6)) for ids in (text, [5, 6, 7], chat)
    ]


@pytest.mark.parametrize("prompt", ["the lazy dog", [5, 6, 7], CHAT], ids=["text", "ids", "chat"])
def test_one_prompt_needs_no_list(tiny: TinyLlama, prompt: Any) -> None:
    """A prompt alone is one prompt, also where it is a list itself. (04-requests.md)"""
    llm = tiny.llm()

    outputs = llm.generate(prompt, SamplingParams(max_tokens=3))

    again = llm.generate([prompt], SamplingParams(max_tokens=3))
    assert outputs == [replace(output, cached_len=0) for output in again]


def test_no_prompts_are_no_outputs() -> None:
    """An empty list is no prompts; an empty prompt is refused. (04-requests.md#refusal)"""
    llm = scripted(LETTERS)

    assert llm.generate([]) == []
    assert llm.generate([[]]) == [Output("", (), "refused", 0, 0, Refusal("empty_prompt", 0, 1))]


@pytest.mark.parametrize(
    ("params", "reason", "output_ids"),
    [
        (SamplingParams(max_tokens=2), "length", (103, 104)),
        (SamplingParams(max_tokens=9), "stop", (103, 104, 105, END)),
        (SamplingParams(max_tokens=4), "stop", (103, 104, 105, END)),
        (SamplingParams(max_tokens=9, stop_token_ids=(104,)), "stop", (103, 104)),
        (SamplingParams(max_tokens=6, ignore_eos=True), "length", (103, 104, 105, END, 107, 108)),
        (SamplingParams(max_tokens=9, ignore_eos=True, stop_token_ids=(END,)), "stop", (103, 104, 105, END)),
    ],
)
def test_an_output_says_why_it_ended(
    params: SamplingParams, reason: str, output_ids: tuple[int, ...]
) -> None:
    """An EOS or stop id is the last token: "stop"; max_tokens: "length". (07-overlap.md#finishing)"""
    llm = scripted([*LETTERS[:6], END, *LETTERS[7:]])

    assert llm.generate([1, 2, 3], params) == [Output("", output_ids, reason, 0, 3)]


def test_text_leaves_special_tokens_out() -> None:
    """The stop token is the last output id, and no text. (04-requests.md)"""
    tokenizer = tiny_tokenizer()
    said = tokenizer.encode(" the tree")
    llm = scripted([0, 0, *said, END], tokenizer=tokenizer)

    (output,) = llm.generate([5, 6])

    assert (output.text, output.output_ids) == (" the tree", (*said, END))


def test_cached_len_is_what_was_found_at_admission() -> None:
    """All but the last token is matched, in whole pages. (02-radix-tree.md#match)"""
    llm = scripted(LETTERS)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 9]]

    first = llm.generate(prompts[0])
    again = llm.generate(prompts)

    assert [output.cached_len for output in first + again] == [0, 6, 6, 4]


def test_a_reset_empties_the_cache() -> None:
    """After reset nothing is found. (03-locks-and-eviction.md#reset)"""
    llm = scripted(LETTERS)
    llm.generate([1, 2, 3, 4, 5])

    llm.reset()

    assert [output.cached_len for output in llm.generate([1, 2, 3, 4, 5])] == [0]


def test_the_longest_sequence_is_the_models_or_the_pools() -> None:
    """Without a limit of its own an engine takes what model and pool allow; the last token needs no slot."""
    lengths = [
        scripted(LETTERS, num_pages=400).max_seq_len,
        scripted(LETTERS, num_pages=10).max_seq_len,
        scripted(LETTERS, num_pages=10, max_seq_len=9).max_seq_len,
    ]

    assert lengths == [MAX_POSITION, 10 * 2 + 1, 9]


# -- streams -----------------------------------------------------------------------------------------


def test_a_stream_joins_to_the_whole(tiny: TinyLlama) -> None:
    """The pieces of each prompt join to its output: tokens, text, and how it ended. (04-requests.md)"""
    prompts: list[Any] = ["the lazy dog", [5, 6, 7], CHAT, "the lazy dog"]
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (20, 3, 25, 7)]
    whole = tiny.llm().generate(prompts, params)

    pieces = list(tiny.llm().generate(prompts, params, stream=True))

    ends = {piece.index: piece for piece in pieces if piece.finish_reason is not None}
    assert whole == [
        Output(
            text=texts(pieces, index),
            output_ids=tokens(pieces, index),
            finish_reason=str(ends[index].finish_reason),
            cached_len=ends[index].cached_len,
            prompt_len=whole[index].prompt_len,
        )
        for index in range(len(prompts))
    ]


def test_a_piece_never_ends_inside_a_character() -> None:
    """A character of several tokens is given out with its last one. (08-numerics.md)"""
    tokenizer = tiny_tokenizer()
    said = tokenizer.encode(MANY_BYTES)
    llm = scripted([0, *said, END], tokenizer=tokenizer)

    pieces = list(llm.generate([5], SamplingParams(max_tokens=60), stream=True))

    assert texts(pieces, 0) == MANY_BYTES
    assert [piece.text for piece in pieces if "\N{REPLACEMENT CHARACTER}" in piece.text] == []
    assert len(pieces) == len(said) + 1 > len(MANY_BYTES)


def test_an_output_cut_inside_a_character_keeps_what_there_is() -> None:
    """The last piece brings the half character, as the text of the whole has it. (08-numerics.md)"""
    tokenizer = tiny_tokenizer()
    said = tokenizer.encode("a🙂")
    params = SamplingParams(max_tokens=3)

    pieces = list(scripted([0, *said], tokenizer=tokenizer).generate([5], params, stream=True))
    (output,) = scripted([0, *said], tokenizer=tokenizer).generate([5], params)

    assert (texts(pieces, 0), pieces[0].text) == (output.text, "a")
    assert output.text.startswith("a\N{REPLACEMENT CHARACTER}")


def test_pieces_come_as_the_tokens_are_made() -> None:
    """A piece is given out after the step that made it, not at the end. (07-overlap.md#loop)"""
    llm = scripted(LETTERS, overlap=False)
    stream = llm.generate([1, 2, 3], SamplingParams(max_tokens=30), stream=True)

    first, second = next(stream), next(stream)

    assert [first, second] == [Piece(0, 0, 103, "", None, 0), Piece(0, 0, 104, "", None, 0)]
    assert llm.scheduler.engine.model.num_forwards == 2  # type: ignore[attr-defined]


def test_two_streams_of_one_llm_may_be_read_alternately() -> None:
    """Whichever needs a token runs a step for both; neither misses a reply. (04-requests.md)"""
    llm = scripted(LETTERS)
    one = llm.generate([[1, 2, 3], [1, 2]], SamplingParams(max_tokens=5), stream=True)
    other = llm.generate([7, 8, 9, 7], SamplingParams(max_tokens=9), stream=True)

    pieces = [next(one), next(other), next(one), next(other)]
    rest, rest_of_other = list(one), list(other)

    assert tokens([pieces[0], pieces[2], *rest], 0) == (103, 104, 105, 106, 107)
    assert tokens([pieces[0], pieces[2], *rest], 1) == (102, 103, 104, 105, 106)
    assert tokens([pieces[1], pieces[3], *rest_of_other], 0) == tuple(range(104, 113))
    assert is_untouched(llm)


# -- ends before the end -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_read", [1, 2, 5])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
def test_closing_a_stream_aborts_what_is_left(num_read: int, overlap: bool) -> None:
    """Running, between chunks or waiting: all are released. (06-decode-and-release.md#abort)"""
    llm = scripted(LETTERS, overlap=overlap, check_level=CheckLevel.FULL)
    prompts = [[1, 2, 3], [4] * 20, [5, 6], [7, 8], [9]]
    stream = llm.generate(prompts, SamplingParams(max_tokens=30), stream=True)
    read = [next(stream) for _ in range(num_read)]

    stream.close()

    assert len(read) == num_read
    assert is_untouched(llm)


def test_a_stream_that_is_never_read_queues_nothing() -> None:
    """Requests are queued when the first piece is asked for. (04-requests.md)"""
    llm = scripted(LETTERS)

    stream = llm.generate([1, 2, 3], stream=True)

    assert is_untouched(llm)
    stream.close()
    assert is_untouched(llm)


def test_abort_ends_one_request_of_a_stream() -> None:
    """One last piece, no token after abort has returned. (06-decode-and-release.md#abort)"""
    llm = scripted(LETTERS)
    stream = llm.generate([[1, 2, 3], [1, 2]], SamplingParams(max_tokens=6), stream=True)
    first = next(stream)

    refusal = llm.abort(first.uid)
    rest = list(stream)

    assert refusal is None
    assert [piece for piece in rest if piece.uid == first.uid] == [Piece(0, first.uid, None, "", "abort", 0)]
    assert tokens(rest, 1) == (102, 103, 104, 105, 106, 107)
    assert llm.abort(first.uid) == Refusal("unknown_uid", first.uid, "a request that has not ended")
    assert is_untouched(llm)


def test_abort_drops_a_token_that_was_made_and_not_handed_out() -> None:
    """Both first tokens came in the same step. (06-decode-and-release.md#abort)"""
    llm = scripted(LETTERS, overlap=False)
    stream = llm.generate([[1, 2, 3], [1, 2]], SamplingParams(max_tokens=6), stream=True)
    first = next(stream)

    llm.abort(first.uid + 1)

    assert [(piece.token, piece.finish_reason) for piece in stream if piece.index == 1] == [(None, "abort")]


@pytest.mark.parametrize("fails_at", [1, 2, 4, 6])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
def test_an_exception_leaves_nothing_behind(fails_at: int, overlap: bool) -> None:
    """Every request of the call is released, and the next call works. (04-requests.md)"""
    llm = scripted(LETTERS, fails_at=fails_at, overlap=overlap, check_level=CheckLevel.FULL)
    prompts = [[1, 2, 3], [4] * 20, [5, 6], [7, 8]]

    with pytest.raises(OSError, match="the device has gone"):
        llm.generate(prompts, SamplingParams(max_tokens=9))

    assert is_untouched(llm)
    assert [output.finish_reason for output in llm.generate(prompts)] == ["length"] * 4


class _Fails:
    """A function that raises at one of its calls, before it does anything."""

    def __init__(self, function: Callable[..., Any], fails_at: int, error: type[BaseException]) -> None:
        self.function, self.fails_at, self.error = function, fails_at, error

    def __call__(self, *args: Any) -> Any:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise self.error("the device has gone")
        return self.function(*args)


def _place(llm: LLM, where: str) -> Any:
    """The object whose function `where` fails."""
    engine = llm.scheduler.engine
    return {"forward": engine.model, "_take_token": llm.scheduler, "_release": llm.scheduler}.get(
        where, engine
    )


@pytest.mark.parametrize("where", ["collect", "forward", "write_pages", "launch", "_take_token", "_release"])
@pytest.mark.parametrize("fails_at", [1, 2, 3])
@pytest.mark.parametrize("streams", ["inline", "simulated"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_wherever_a_step_fails_nothing_is_left_behind_and_what_is_cached_was_computed(
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    fails_at: int,
    streams: str,
    overlap: bool,
    error: type[BaseException],
) -> None:
    """Rows, locks and pages come back; the same prompts then have their own tokens. (04-requests.md)"""
    prompts, params = [[1, 2, 3], [4] * 12, [1, 2, 3, 5], [7, 8]], SamplingParams(max_tokens=5)
    right = [
        output.output_ids for output in digest_llm(streams=streams, overlap=overlap).generate(prompts, params)
    ]
    llm = digest_llm(streams=streams, overlap=overlap)
    place = _place(llm, where)
    monkeypatch.setattr(place, where, _Fails(getattr(place, where), fails_at, error))

    with pytest.raises(error, match="the device has gone"):
        llm.generate(prompts, params)

    assert is_untouched(llm)
    assert not any(node.ref_count for node in llm.scheduler.view().cache.nodes)
    assert [output.output_ids for output in llm.generate(prompts, params)] == right


def test_replies_that_wait_outlive_a_failed_step() -> None:
    """They come with the next step that succeeds, like those the failure ended. (04-requests.md)"""
    scheduler = scripted(LETTERS, fails_at=2, streams="simulated", overlap=False).scheduler
    for uid in (1, 2):
        scheduler.submit(uid, [uid, 2, 3], SamplingParams(max_tokens=4))
    scheduler.step()
    scheduler.abort(1)

    with pytest.raises(OSError, match="the device has gone"):
        scheduler.step()

    assert scheduler.submit(1, [1], GOOD) is not None
    assert scheduler.step() == [Reply(1, None, "abort", 0), Reply(2, None, "abort", 0)]
    assert scheduler.is_idle()


def test_a_device_that_stays_away_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every later result fails as the first did. (04-requests.md)"""
    llm = digest_llm(streams="simulated")

    def gone(_: object) -> None:
        raise OSError("the device has gone")

    monkeypatch.setattr(llm.scheduler.engine, "collect", gone)
    for _ in range(3):
        with pytest.raises(OSError, match="the device has gone"):
            llm.generate([[1, 2, 3], [4, 5]])

        assert is_untouched(llm)


def test_a_failed_step_that_caught_the_host_halfway_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages were taken that nobody has: it is found, whatever was to be checked. (invariants.md)"""
    llm = digest_llm(check_level=CheckLevel.LOCAL)
    cache = llm.scheduler.cache
    allocate = cache.allocate

    def takes_and_fails(num_pages: int) -> list[int]:
        allocate(num_pages)
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "allocate", takes_and_fails)
    with pytest.raises(InvariantError, match="pages_partitioned"):
        llm.generate([1, 2, 3])

    with pytest.raises(ContractError, match="an engine that has not stopped"):
        llm.generate([1, 2, 3])


def test_a_failed_step_ends_the_other_streams_too() -> None:
    """What the step would have brought them is lost: they end with "abort". (04-requests.md)"""
    llm = scripted(LETTERS, fails_at=4)
    other = llm.generate([7, 8, 9], SamplingParams(max_tokens=20), stream=True)
    begun = next(other)

    with pytest.raises(OSError, match="the device has gone"):
        llm.generate([1, 2, 3], SamplingParams(max_tokens=9))

    assert begun.token == 103
    assert [piece.finish_reason for piece in other][-1] == "abort"
    assert is_untouched(llm)


def test_a_broken_invariant_stops_the_engine() -> None:
    """The state is unknown: nothing more is run on it. (invariants.md)"""
    broken = InvariantError([Violation("pages_partitioned", "page 3 is owned twice")])
    llm = scripted(LETTERS, fails_at=2, error=lambda _: broken)  # type: ignore[arg-type]
    with pytest.raises(InvariantError):
        llm.generate([1, 2, 3])

    with pytest.raises(ContractError) as caught:
        llm.generate([1, 2, 3])

    assert caught.value.got == {"stopped_by": broken}


def test_a_reset_is_refused_while_a_stream_runs() -> None:
    """A handle is locked; the stream goes on undisturbed. (03-locks-and-eviction.md#reset)"""
    llm = scripted(LETTERS)
    stream = llm.generate([1, 2, 3], SamplingParams(max_tokens=4), stream=True)
    first = next(stream)

    with pytest.raises(ContractError):
        llm.reset()

    assert tokens([first, *stream], 0) == (103, 104, 105, 106)


# -- bad input ---------------------------------------------------------------------------------------

GOOD = SamplingParams(max_tokens=2)
REFUSED: dict[str, tuple[list[int], SamplingParams, Refusal]] = {
    "empty prompt": ([], GOOD, Refusal("empty_prompt", 0, 1)),
    "token too large": ([1, VOCAB_SIZE], GOOD, Refusal("token_out_of_range", VOCAB_SIZE, VOCAB_SIZE)),
    "token negative": ([1, -1], GOOD, Refusal("token_out_of_range", -1, VOCAB_SIZE)),
    "no tokens": ([1], SamplingParams(max_tokens=0), Refusal("max_tokens_not_positive", 0, 1)),
    "top_k": ([1], SamplingParams(top_k=-2), Refusal("bad_top_k", -2, 0)),
    "top_p": ([1], SamplingParams(top_p=0.0), Refusal("bad_top_p", 0.0, 1)),
    "temperature": ([1], SamplingParams(temperature=-0.5), Refusal("bad_temperature", -0.5, 0)),
    "too long": ([1] * 50, GOOD, Refusal("prompt_too_long", 50, 49)),
    "larger than the pool": ([1] * 45, SamplingParams(max_tokens=4), Refusal("larger_than_pool", 24, 20)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_prompt_is_refused_in_its_own_output_and_the_others_go_on(case: str) -> None:
    """The refusal shows reason, value and limit. (04-requests.md#refusal)"""
    prompt, params, refusal = REFUSED[case]
    llm = scripted(LETTERS, num_pages=20, max_seq_len=50)

    outputs = llm.generate([[1, 2, 3], prompt, [1, 2]], [GOOD, params, GOOD])

    assert outputs == [
        Output("", (103, 104), "length", 0, 3),
        Output("", (), "refused", 0, len(prompt), refusal),
        Output("", (102, 103), "length", 0, 2),
    ]
    assert str(refusal) == f"{refusal.reason}: got {refusal.value}, limit {refusal.limit}"
    assert is_untouched(llm)


def test_nan_is_refused() -> None:
    """NaN equals nothing, not even itself. (04-requests.md#refusal)"""
    (output,) = scripted(LETTERS).generate([1, 2], SamplingParams(temperature=float("nan")))

    assert str(output.refusal) == "bad_temperature: got nan, limit 0"


def test_a_refused_prompt_of_a_stream_has_one_piece() -> None:
    """It comes with the others' pieces, with the refusal. (04-requests.md#refusal)"""
    llm = scripted(LETTERS)

    pieces = list(llm.generate([[1, 2], []], GOOD, stream=True))

    refusal = Refusal("empty_prompt", 0, 1)
    assert [piece for piece in pieces if piece.index == 1] == [Piece(1, 1, None, "", "refused", 0, refusal)]
    assert tokens(pieces, 0) == (102, 103)


WRONG: dict[str, tuple[Any, Any]] = {
    "a number": (5, GOOD),
    "nothing": (None, GOOD),
    "bytes": (b"the", GOOD),
    "a tensor": (torch.tensor([1, 2]), GOOD),
    "text among ids": ([1, "the"], GOOD),
    "a float among ids": ([[1, 2.0]], GOOD),
    "a bool among ids": ([[1, True]], GOOD),
    "a message without content": ([[{"role": "user"}]], GOOD),
    "a message whose content is no text": ([{"role": "user", "content": 5}], GOOD),
    "text without a tokenizer": ("the", GOOD),
    "params of another kind": ([[1]], {"max_tokens": 3}),
    "too few params": ([[1], [2]], [GOOD]),
    "params of another kind in a list": ([[1]], [{"max_tokens": 3}]),
    "max_tokens no whole number": ([[1]], SamplingParams(max_tokens=2.0)),  # type: ignore[arg-type]
    "max_tokens no number": ([[1]], SamplingParams(max_tokens="2")),  # type: ignore[arg-type]
    "temperature no number": ([[1]], SamplingParams(temperature=None)),  # type: ignore[arg-type]
    "top_k no whole number": ([[1]], SamplingParams(top_k=True)),
    "seed no whole number": ([[1]], SamplingParams(seed=1.5)),  # type: ignore[arg-type]
    "stop ids no list": ([[1]], SamplingParams(stop_token_ids=5)),  # type: ignore[arg-type]
    "stop ids no ids": ([[1]], SamplingParams(stop_token_ids=("the",))),  # type: ignore[arg-type]
    "ignore_eos no bool": ([[1]], SamplingParams(ignore_eos=1)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_wrong_type_is_the_callers_mistake(case: str, stream: bool) -> None:
    """It is refused when generate is called, before anything is queued. (04-requests.md#refusal)"""
    prompts, params = WRONG[case]
    llm = scripted(LETTERS)

    with pytest.raises(ContractError) as caught:
        llm.generate(prompts, params, stream=stream)

    assert caught.value.operation == "generate"
    assert is_untouched(llm)


@pytest.mark.parametrize(
    "prompt", ["a\ud800", [{"role": "user", "content": "a\ud800"}]], ids=["text", "chat"]
)
def test_text_that_no_file_can_hold_is_the_callers_mistake(prompt: Any) -> None:
    """Half of a surrogate pair is no character; tokenizers fail on it in their own way. (CONTRIBUTING.md)"""
    with pytest.raises(ContractError, match=r"text without half of a surrogate pair; got value='a\\ud800"):
        scripted(LETTERS, tokenizer=tiny_tokenizer()).generate(prompt)


def test_the_message_of_a_wrong_type_shows_place_value_and_type() -> None:
    """What is wrong, and where. (CONTRIBUTING.md)"""
    with pytest.raises(ContractError) as caught:
        scripted(LETTERS).generate([[1], 7])  # type: ignore[list-item]

    assert str(caught.value) == (
        "generate: need prompts[1]: text, a list of token ids, or a list of messages with role and content; "
        "got value=7, type=int."
    )


def test_params_are_only_read() -> None:
    """max_tokens is clamped in a copy; lists stay the caller's. (deviations.md)"""
    stop_ids: Any = [300, 301]
    params = SamplingParams(max_tokens=10_000, stop_token_ids=stop_ids)
    before = deepcopy(params)

    (output,) = scripted(LETTERS, max_seq_len=12).generate([1, 2, 3], params)

    assert (params, params.stop_token_ids is stop_ids) == (before, True)
    assert (len(output.output_ids), output.finish_reason) == (9, "length")


NO_CUDA = "backend cuda is not available: torch sees 0 CUDA devices; got device=cuda:3"


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("abacus", ContractError, "choose_device: need a device of ('cpu', 'cuda'); got device='abacus'."),
        ("meta", ContractError, "choose_device: need a device of ('cpu', 'cuda'); got device='meta'."),
        ("cuda:3", BackendUnavailable, NO_CUDA),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_before_loading(
    monkeypatch: pytest.MonkeyPatch, device: str, error: type[Exception], message: str
) -> None:
    """An unknown device is the caller's mistake, a missing one the machine's. (CONTRIBUTING.md)"""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)

    with pytest.raises(error) as caught:
        LLM("no such folder", EngineConfig(device=device))

    assert str(caught.value) == message


def test_the_c_backend_does_not_serve_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name a CUDA device takes torch; C is refused. (kernels/README.md)"""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    with pytest.raises(BackendUnavailable, match="its kernels run on the CPU; got device=cuda"):
        choose_backend("c", "cuda")

    assert choose_backend(None, "cuda").name == "torch"


# -- sampling ------------------------------------------------------------------------------------------


def test_a_seeded_sample_depends_on_nothing_but_its_request(tiny: TinyLlama) -> None:
    """Alone or in a batch, cached or not, overlap or not: the same tokens. (08-numerics.md)"""
    params = SamplingParams(max_tokens=12, temperature=0.9, top_k=50, top_p=0.95, seed=11, ignore_eos=True)
    others = [SamplingParams(max_tokens=7, temperature=1.3, seed=seed) for seed in (1, 2, 3)]
    prompts = [[9, 8, 7], [5, 6, 7, 8, 9], [5, 6, 7], [5, 6, 7, 8]]
    (alone,) = tiny.llm().generate([5, 6, 7, 8, 9], params)
    llm = tiny.llm(overlap=False, token_budget=3)

    batched = llm.generate(prompts, [others[0], params, others[1], others[2]])
    cached = llm.generate([5, 6, 7, 8, 9], params)

    assert {batched[1].output_ids, cached[0].output_ids} == {alone.output_ids}
    assert cached[0].cached_len == 4


def test_another_seed_is_another_sample(tiny: TinyLlama) -> None:
    """Each request has random numbers of its own. (08-numerics.md)"""
    params = [SamplingParams(max_tokens=8, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(4)]

    outputs = tiny.llm().generate([[5, 6, 7]] * 4, params)

    assert len({output.output_ids for output in outputs}) == 4


def test_threads_are_set_where_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """num_threads is torch's number of threads; without it torch keeps its own. (04-requests.md)"""
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)

    scripted(LETTERS)
    scripted(LETTERS, num_threads=3)

    assert asked == [3]
