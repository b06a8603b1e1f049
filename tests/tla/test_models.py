"""TLC says of every model what the manifest pins."""

from pathlib import Path

import pytest

from minisgl_conformance.tla import models

FOLDER = Path(__file__).parents[2] / "tla"
MODELS = models.load_manifest(FOLDER)
SMALL = [model for model in MODELS if model.size == models.SMALL]
QUICK = (
    "PrefixCache",
    "Scheduler",
    "SchedulerPairs",
    "SchedulerLate",
    "SchedulerLimits",
    "SchedulerProgress",
)
PASSING = [model for model in SMALL if model.name in QUICK]
DEVIATIONS = [model for model in SMALL if model.sentence.startswith("Deviation ")]
OTHERS = [model for model in SMALL if model not in PASSING and model not in DEVIATIONS]  # `make slow`


def named(chosen: list[models.Model]) -> list[object]:
    return [pytest.param(model, id=model.name) for model in chosen]


@pytest.mark.parametrize("model", named(PASSING))
def test_a_small_model_passes_with_the_pinned_numbers_of_states(tla: Path, model: models.Model):
    """No rule is broken in any state, and there are as many states as there were. (tla/README.md)"""
    assert models.check(model, tla).problems == ()


@pytest.mark.parametrize("model", named(DEVIATIONS))
def test_a_deviation_is_refuted_by_its_rule_at_the_pinned_depth(tla: Path, model: models.Model):
    """What upstream does is refuted, shortest counterexample first. (tla/README.md#models-that-must-fail)"""
    assert models.check(model, tla).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("model", named(OTHERS))
def test_a_guard_left_out_is_noticed(tla: Path, model: models.Model):
    """By the rule of the manifest, or by its numbers of states. (tla/README.md#models-that-must-fail)"""
    assert models.check(model, tla).problems == ()


def test_there_is_a_model_that_must_fail_for_each_of_deviations_1_to_8():
    """Each of deviations 1 to 8 has its model. (spec/deviations.md)"""
    assert sorted(model.sentence[:12] for model in DEVIATIONS) == [
        f"Deviation {number}:" for number in range(1, 9)
    ]


def test_a_number_that_differs_is_a_problem_with_both_values():
    """A pinned number that TLC does not find is reported, not taken over. (tla/README.md)"""
    model = next(model for model in PASSING if model.name == "Scheduler")
    outcome = models.tlc.Outcome("passed", None, 1, model.total or 0, model.depth or 0, 0.0, "")

    assert models.Checked(model, outcome).problems == (f"distinct is 1, pinned {model.distinct}",)
