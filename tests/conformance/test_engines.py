"""What the fuzzer says of engines: the oracle is clean, and each wrong engine is named."""

from __future__ import annotations

from typing import Any

import pytest
from broken_engines import RIGHT, WRONG, BlindEngine, CachesAlways

from minisgl_conformance import run_conformance, run_program
from minisgl_conformance.adapters.oracle import OracleEngine
from minisgl_conformance.content import Tape, judge_executions
from minisgl_conformance.fuzz import BOTH, fuzz
from minisgl_conformance.targets import CAPABILITIES
from minisgl_spec.errors import ContractError
from minisgl_spec.messages import ExecutedRequest, Execution
from minisgl_spec.shadow import ShadowMemory, digest_codes
from minisgl_spec.trace import Program


def test_the_oracle_keeps_its_own_rules_as_an_engine() -> None:
    """The oracle's scheduler passes every judge; only it has no device to show. (spec/README.md)"""
    summary = run_conformance(OracleEngine, "engine", examples=40, seed=1)

    assert (summary.num_programs, summary.findings, summary.not_claimed) == (40, [], ("executions",))


def test_a_target_that_claims_a_view_has_to_show_one() -> None:
    """Without it nobody would judge structure and ownership, and nobody would say so. (targets.py)"""

    class ShowsNothing(OracleEngine):
        def view(self) -> Any:
            return None

    with pytest.raises(ContractError) as refused:
        fuzz(ShowsNothing, "engine", seed=1, examples=1)

    assert str(refused.value) == "view: need a EngineView; got value=None, type=NoneType."


@pytest.mark.parametrize("engine", RIGHT, ids=lambda engine: engine.__name__)
def test_an_engine_that_differs_and_is_right_is_left_alone(engine: type[OracleEngine]) -> None:
    """One page more, quiet or late answers, no naive cache, numpy's numbers: permitted. (spec/README.md)"""
    summary = fuzz(engine, "engine", seed=2, examples=100, driver=BOTH)

    assert summary.findings == []
    assert set(summary.not_claimed) == set(CAPABILITIES["engine"]) - engine.capabilities


def test_without_a_naive_cache_there_is_none_and_none_is_compared() -> None:
    """What is not claimed is not asked for. (spec/README.md)"""
    configs = []
    fuzz(
        CachesAlways,
        "engine",
        seed=1,
        examples=60,
        driver=BOTH,
        watch=lambda _, result: configs.append(result.program.config),
    )

    assert {config["cache"] for config in configs} == {"radix"}
    assert {config.get("compare", "") for config in configs} == {
        "",
        "token_budget",
        "overlap",
        "token_budget,overlap",
    }


def test_one_program_in_eight_is_compared_with_every_variant() -> None:
    """The rest with one that is drawn, or none. (07-overlap.md)"""
    compared = []
    fuzz(
        BlindEngine,
        "engine",
        seed=1,
        examples=160,
        driver=BOTH,
        watch=lambda _, result: compared.append(result.program.config.get("compare", "")),
    )

    assert 10 <= compared.count("cache,token_budget,overlap") <= 30
    assert set(compared) == {"", "cache", "token_budget", "overlap", "cache,token_budget,overlap"}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"next_token": lambda *_: 3}, "next_token: need a sequence of whole numbers; got value=3, type=int"),
        ({"next_token": lambda *_: (1.5,)}, r"got value=\(1.5,\), type=tuple"),
        ({"step": lambda _: None}, "step: need a sequence of Reply; got value=None, type=NoneType"),
        ({"step": lambda _: ["a"]}, "step: need a sequence of Reply; got value='a', type=str"),
        ({"submit": lambda *_, **__: "no"}, "submit: need None or a Refusal; got value='no', type=str"),
        ({"capabilities": ("veiw",)}, "got name='veiw'"),
    ],
)
def test_an_answer_that_is_none_is_the_adapters_mistake(answer: dict[str, object], message: str) -> None:
    """The method, the value and its type are named. (spec/README.md)"""
    engine = type("Mistaken", (BlindEngine,), answer)

    with pytest.raises(ContractError, match=message):
        run_conformance(engine, "engine", examples=5)


def test_a_program_may_name_variants_that_there_are_not() -> None:
    """An unknown variant is refused by its name. (spec/README.md)"""
    with pytest.raises(ContractError, match="got compare='speed'"):
        run_conformance(BlindEngine, "engine", examples=1, config={"compare": "cache,speed"})


def test_a_log_carries_what_was_replied() -> None:
    """Every step's event lists its replies, also of an engine that shows nothing else. (spec/README.md)"""
    config = {"page_size": 1, "num_pages": 4, "num_rows": 1, "max_seq_len": 8}
    config |= {"token_budget": 4, "overlap": False, "vocab_size": 6}
    op = {"op": "submit", "uid": 3, "ids": [1], "max_tokens": 1}
    events = run_program(BlindEngine, Program("engine", config, [op, {"op": "step"}])).log.events

    assert events[1] == {
        "event": "step",
        "replies": [{"uid": 3, "token": 4, "finish_reason": "length", "cached_len": 0}],
    }


@pytest.mark.parametrize("engine", WRONG, ids=lambda engine: engine.__name__)
def test_a_wrong_engine_is_found_by_the_rule_it_breaks(engine: type[OracleEngine]) -> None:
    """Each mistake is found within a few programs, under the name of the rule. (invariants.md)"""
    summary = fuzz(engine, "engine", seed=1, examples=100, shrink=False)

    assert [finding.rule for finding in summary.findings] == [WRONG[engine]]


def test_the_program_of_an_engines_finding_repeats_it() -> None:
    """The steps that bring the engine to rest belong to the program. (spec/README.md)"""
    engine = next(wrong for wrong, rule in WRONG.items() if rule == "requests_finish")
    found = fuzz(engine, "engine", seed=1, examples=100, shrink=False).findings[0]
    again = run_program(engine, found.program).finding

    assert again is not None
    assert (again.rule, again.program.ops) == (found.rule, found.program.ops)


def test_an_unknown_key_of_a_configuration_is_refused() -> None:
    """A key that no configuration has is named. (04-requests.md)"""
    with pytest.raises(ContractError, match="got key='pagesize'"):
        run_conformance(OracleEngine, "engine", config={"pagesize": 4})


def test_an_unknown_operation_is_refused() -> None:
    """A program's own mistake is no finding. (spec/README.md)"""
    config = {"page_size": 1, "num_pages": 4, "num_rows": 1, "max_seq_len": 8}
    config |= {"token_budget": 4, "overlap": False, "vocab_size": 6}
    program = Program("engine", config, [{"op": "pause"}])

    with pytest.raises(ContractError, match="got op='pause'"):
        run_program(OracleEngine, program)


# -- the content judge -------------------------------------------------------------------------

PROMPT = (0, 1, 2)


def judged(*requests: ExecutedRequest) -> list[str]:
    """Judge one executed batch of one request, uid 7, whose model always generates 5."""
    shadow = ShadowMemory()
    tape = Tape(shadow, PROMPT, lambda ids, output_idx: (5,))
    batches = [Execution(batch, (request,)) for batch, request in enumerate(requests, 1)]
    return [str(violation) for violation in judge_executions(batches, {7: tape}, shadow)]


def test_a_batch_that_reads_what_it_wrote_is_right() -> None:
    """A prefill in two chunks, then a decode of what the model generated. (08-numerics.md)"""
    found = judged(
        ExecutedRequest(7, 0, 0, (0, 1), (4, 5), digest_codes((0, 1))),
        ExecutedRequest(7, 0, 2, (2,), (4, 5, 6), digest_codes(PROMPT)[2:]),
        ExecutedRequest(7, 0, 3, (5,), (4, 5, 6, 9), digest_codes((*PROMPT, 5))[3:]),
    )

    assert found == []


def test_a_read_from_another_slot_is_found() -> None:
    """Every position read holds the tokens of the request up to there. (08-numerics.md)"""
    found = judged(
        ExecutedRequest(7, 0, 0, (0, 1), (4, 5), None), ExecutedRequest(7, 0, 2, (2,), (4, 3, 6), None)
    )

    seen = "request 7 read position 1 from slot 3, which was never written, expected (0, 1)"

    assert found == [f"reads_hold_their_prefix: {seen}"]


def test_a_wrong_token_of_the_device_is_found() -> None:
    """What the device reads from its token pool is the request's own. (08-numerics.md)"""
    found = judged(
        ExecutedRequest(7, 0, 0, PROMPT, (4, 5, 6), None), ExecutedRequest(7, 0, 3, (1,), (4, 5, 6, 7), None)
    )

    assert found == ["reads_hold_their_prefix: request 7 read token 1 at position 3; its tokens there: (5,)"]


def test_a_wrong_code_is_found() -> None:
    """A digest code is the fold of all tokens before it. (08-numerics.md)"""
    codes = digest_codes(PROMPT)
    wrong = (codes[0], codes[1], 12)
    found = judged(ExecutedRequest(7, 0, 0, PROMPT, (4, 5, 6), wrong))
    seen = f"request 7 wrote codes {wrong} at positions range(0, 3); expected {codes}"

    assert found == [f"digest_is_the_models: {seen}"]
