"""Claims about recordings: a run that serves is a program and a log like any other, and can be repeated.

Guide: tests/README.md
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minisgl_conformance.adapters.ours import make_engine
from minisgl_conformance.files import read_log, read_program
from minisgl_conformance.runner import run_program
from minisgl_ref import LLM, CheckLevel, EngineConfig, SamplingParams
from minisgl_ref.build import choose_backend
from minisgl_ref.models.digest import DigestModel
from minisgl_spec.errors import ContractError

from .tiny_chat import scripted

LETTERS = list(range(100, 180))


def digest_llm(**config: Any) -> LLM:
    measures: dict[str, Any] = {
        "page_size": 2,
        "num_pages": 12,
        "num_rows": 3,
        "max_seq_len": 16,
        "token_budget": 6,
    }
    measures |= {"check_level": CheckLevel.FULL, "backend": "torch", **config}
    model = DigestModel(16, (3,), 16, choose_backend("torch"))
    return LLM.from_model(model, None, EngineConfig(**measures))


@pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])
@pytest.mark.parametrize("streams", ["inline", "simulated"])
def test_a_recorded_run_is_repeated_event_by_event(overlap: bool, streams: str, tmp_path: Path) -> None:
    """The runner writes the same log, and finds nothing. (README.md)"""
    llm = digest_llm(overlap=overlap, streams=streams)
    recording = llm.record()
    seeded = SamplingParams(4, temperature=0.8, top_k=5, seed=3, stop_token_ids=(1,))
    llm.generate([[1, 2, 4, 5], [1, 2, 4, 5, 6], [7] * 20], [SamplingParams(4), seeded, SamplingParams(4)])
    stream = llm.generate([[1, 2, 4, 5, 6, 7, 8, 9], [5]], SamplingParams(6, ignore_eos=True), stream=True)
    llm.abort(next(stream).uid)
    with pytest.raises(ContractError):
        llm.reset()
    stream.close()
    llm.reset()

    recording.write(tmp_path, "served")

    program = read_program(tmp_path / "served.program.jsonl")
    log = read_log(tmp_path / "served.log.jsonl")
    again = run_program(make_engine, program)
    assert again.finding is None
    assert list(again.log.events) == list(log.events)


def test_a_model_that_no_program_knows_is_named_by_its_class(tmp_path: Path) -> None:
    """The log can be judged, the run not repeated. (README.md)"""
    llm = scripted(LETTERS)
    recording = llm.record()
    llm.generate([1, 2, 3])

    recording.write(tmp_path)

    assert read_log(tmp_path / "run.log.jsonl").config["model"] == "ScriptedModel"
    assert [op["op"] for op in read_program(tmp_path / "run.program.jsonl").ops][:2] == ["submit", "step"]


def test_a_step_that_fails_is_written_down_with_what_it_raised() -> None:
    """And the steps after it. (README.md)"""
    llm = scripted(LETTERS, fails_at=2)
    recording = llm.record()

    with pytest.raises(OSError, match="the device has gone"):
        llm.generate([1, 2, 3])

    steps = [event for event in recording.log().events if event["event"] == "step"]
    assert [event.get("raised") for event in steps] == [None, "OSError", None]


def test_numbers_are_written_as_pythons_own_and_what_is_none_is_left_out() -> None:
    """No program could ask for it. (04-requests.md#refusal)"""
    llm = scripted(LETTERS)
    recording = llm.record()
    recording.submit(0, np.array([1, 2]), SamplingParams(np.int64(2)))  # type: ignore[arg-type]
    recording.submit(1, [1, 2.5], SamplingParams(2))  # type: ignore[list-item]

    assert recording.program().ops == ({"op": "submit", "uid": 0, "ids": [1, 2], "max_tokens": 2},)
    assert recording.log().events == ({"event": "submit", "uid": 0, "accepted": True},)


def test_a_recording_begins_with_an_unused_engine() -> None:
    """Else its program would not begin where the run did. (README.md)"""
    llm = scripted(LETTERS)
    llm.generate([1, 2, 3])

    with pytest.raises(ContractError) as caught:
        llm.record()

    assert caught.value.need == "an engine that has not been used"
