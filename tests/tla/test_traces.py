"""Recorded runs are behaviours of the model, and changed ones are not."""

from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minisgl_conformance.cli import app
from minisgl_conformance.tla import __main__ as command_line
from minisgl_conformance.tla import mutate, record, traces
from minisgl_ref.testing import make_engine_target
from minisgl_ref.zoo import deviations, fault


@cache
def recorded(first_seed: int, count: int, num_ops: int) -> tuple[traces.Trace, ...]:
    runs = [
        record.record(make_engine_target, record.draw_program(first_seed + idx, num_ops))
        for idx in range(count)
    ]
    assert [run.disagreement for run in runs] == [None] * count
    return tuple(traces.trace_of(run.program, run.log) for run in runs)


def first_of(kind: str, trace: traces.Trace) -> int:
    return next(at for at, event in enumerate(trace.events) if traces.KINDS[event[0]][0] == kind)


def changed(trace: traces.Trace, at: int, field: int, value: int) -> traces.Trace:
    event = trace.events[at]
    events = (*trace.events[:at], (*event[:field], value, *event[field + 1 :]), *trace.events[at + 1 :])
    return traces.Trace(trace.header, events)


def test_recorded_runs_are_accepted_each_with_a_witness(tla: Path):
    """Every event of the engine is an action of the model with the same answer. (tla/README.md)"""
    batch = recorded(1, 8, 100)

    verdict = traces.validate(batch, tla)

    assert verdict.rejected == ()
    assert len(verdict.outcomes) > 50


def test_what_the_fuzzer_records_is_accepted(tla: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`minisgl-ref fuzz --record` writes programs and logs that the model follows. (tla/README.md)"""
    arguments = ["fuzz", "--level", "engine", "--examples", "6", "--seed", "3", "--record", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).exit_code == 0

    code = command_line.main(["--tla", str(tla), "trace", str(tmp_path)])

    assert code == 0
    assert capsys.readouterr().out.startswith("6 of 6 accepted: ")


def test_a_folder_without_recorded_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """It is shown, and nothing is called accepted. (tla/README.md)"""
    assert command_line.main(["trace", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().out


def test_changed_traces_are_judged_right(tla: Path):
    """A changed answer is rejected, a change that stays valid accepted. (tla/README.md)"""
    changed_traces = mutate.mutants(recorded(500, 12, 40), per_kind=1)

    verdict = traces.validate([mutant.trace for mutant in changed_traces], tla, is_counting_outcomes="FALSE")

    judged = {mutant.name: idx in verdict.accepted for idx, mutant in enumerate(changed_traces)}
    assert judged == {mutant.name: mutant.is_valid for mutant in changed_traces}
    assert set(judged) > set(mutate.INPUT_CHANGES)


def test_a_trace_that_was_not_read_to_its_end_is_rejected_though_tlc_finds_no_error(tla: Path):
    """Only the witness counts: without it TLC's own verdict would accept anything. (tla/README.md)"""
    trace = recorded(500, 12, 40)[0]
    broken = changed(trace, first_of("admit", trace), 3, 99)

    verdict = traces.validate([broken], tla)

    assert verdict.outcome.result == "passed"
    assert verdict.accepted == frozenset()


def test_a_rejection_names_the_event_and_the_field_with_both_values(tla: Path):
    """At most 15 lines: the event, what the model answers, what differs. (tla/README.md)"""
    trace = recorded(500, 12, 40)[0]
    at = first_of("admit", trace)

    rejection = traces.explain(changed(trace, at, 3, 99), tla)

    lines = str(rejection).splitlines()
    assert lines[-1] == f"differs: cached_len: the log has 99, the model {trace.events[at][3]}"
    assert lines[0].startswith(f"event {at}: admit uid=")
    assert len(lines) <= 15


def test_a_rejection_of_an_event_out_of_place_names_what_was_enabled(tla: Path):
    """An action that is not enabled is reported with those that are. (tla/README.md)"""
    trace = recorded(500, 12, 40)[0]
    at = first_of("launch", trace)
    lost = traces.Trace((*trace.header[:-1], at + 1), (*trace.events[:at], trace.events[at + 1]))

    rejection = traces.explain(lost, tla)

    assert str(rejection).splitlines()[-1] == "differs: end_step is not enabled; enabled: launch"


def test_a_run_that_leaves_the_oracle_blames_the_engine():
    """Where the engine leaves the oracle, the record ends and says so. (tla/README.md)"""
    faulty = fault.load(deviations.REPLY_AFTER_THE_END).make_engine_target
    runs = (record.record(faulty, record.draw_program(seed)) for seed in range(40))

    found = next(run.disagreement for run in runs if run.disagreement is not None)

    assert found.culprit == "engine"
    assert found.fact.startswith("step: ")


def test_every_kind_and_field_of_an_answer_is_changed():
    """No field that the engine answers with is left out of the mutants. (tla/README.md)"""
    names = {
        mutant.name for mutant in mutate.mutants(recorded(500, 12, 40), per_kind=1) if not mutant.is_valid
    }
    answers = {
        f"{name}.{field}"
        for name, fields in traces.KINDS.values()
        for field in fields
        if (name, field) not in mutate.INPUTS
    }

    assert answers <= names


@pytest.mark.parametrize("seed", [3, 4])
def test_a_trace_is_made_of_integers_only(seed: int):
    """TLC reads tuples of integers fastest, so nothing else is written. (tla/README.md)"""
    text = traces.to_tla(recorded(seed, 1, 40)[0].events)

    assert set(text) <= set("<>,-0123456789 ")
