"""Every edge of the model's graph is a program, and three judges agree on it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from minisgl_conformance.tla import graph, replay
from minisgl_ref.checks import CheckLevel
from minisgl_ref.testing import make_engine_target
from minisgl_ref.zoo import deviations, fault
from minisgl_spec.page_pool import RowPool
from minisgl_spec.scheduler import Scheduler

TLA = Path(__file__).parents[2] / "tla"
SETTING = graph.setting(num_requests=2)


@cache
def dumped(mistake: str = "none") -> graph.Graph:
    return graph.dump(SETTING, TLA, mistake)[0]


def engine(backend: str) -> Callable[[Any], Any]:
    return lambda config: make_engine_target(config, CheckLevel.FULL, backend)


def judges(**changed: replay.RunProgram) -> dict[str, replay.RunProgram]:
    return {"oracle": replay.oracle_runner(), "engine": replay.engine_runner(engine("torch")), **changed}


def first_disagreement(of: graph.Graph, by: dict[str, replay.RunProgram]) -> replay.Disagreement:
    found = (replay.replay(of, walk, SETTING, by) for walk in graph.walks(of))
    return next(one for one in found if one is not None)


def test_walks_cover_every_edge_of_the_graph(tla: Path):
    """A greedy walk leaves no edge out. (tla/README.md)"""
    covered = {edge for walk in graph.walks(dumped()) for edge in walk}

    assert covered == {edge for edges in dumped().edges.values() for edge in edges}
    assert len(covered) > 2000


def test_oracle_and_engine_take_the_steps_of_the_model(tla: Path):
    """A sample of the programs, with the model's events expected of each judge. (tla/README.md)"""
    walks = list(graph.walks(dumped()))[::9]

    assert [replay.replay(dumped(), walk, SETTING, judges()) for walk in walks] == [None] * len(walks)


@pytest.mark.slow
def test_oracle_engine_and_c_kernels_take_every_edge(tla: Path):
    """All programs of the graph, on both backends of the engine. (tla/README.md)"""
    walks = list(graph.walks(dumped()))
    by = judges(c=replay.engine_runner(engine("c")))

    assert [replay.replay(dumped(), walk, SETTING, by) for walk in walks] == [None] * len(walks)


def test_an_oracle_that_differs_is_the_culprit(tla: Path):
    """Two judges against one: rows handed out first in, first out. (tla/README.md)"""

    class OldestRow(RowPool):
        def take(self) -> int:
            row, self.free_rows = self.free_rows[0], self.free_rows[1:]
            return row

    def make_oracle(config: Any, next_token: Any) -> Scheduler:
        oracle = Scheduler(config, next_token)
        oracle.rows = OldestRow(config.num_rows)
        return oracle

    found = first_disagreement(dumped(), judges(oracle=replay.oracle_runner(make_oracle)))

    assert found.culprit == "oracle"


def test_an_engine_that_differs_is_the_culprit(tla: Path):
    """An engine that releases what is in flight. (spec/deviations.md)"""
    faulty = fault.load(deviations.RELEASE_IN_FLIGHT).make_engine_target

    found = first_disagreement(dumped(), judges(engine=replay.engine_runner(faulty)))

    assert found.culprit == "engine"


def test_a_model_that_differs_is_the_culprit(tla: Path):
    """A model that admits whole prompts, whatever the budget. (tla/README.md)"""
    found = first_disagreement(dumped("budget_ignored"), judges())

    assert found.culprit == "model"
