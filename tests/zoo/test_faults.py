"""What a fault is: a change in a copy, refused when its anchor has gone, and no trace in the real engine.

Guide: tests/README.md
"""

from __future__ import annotations

import sys

import pytest

import minisgl_ref.checks
import minisgl_ref.testing
from minisgl_ref.scheduler.scheduler import Scheduler
from minisgl_ref.zoo.deviations import UNDOS
from minisgl_ref.zoo.fault import Edit, Fault, faulty_source, load
from minisgl_spec import errors
from minisgl_spec.contracts import CONTRACTS
from minisgl_spec.errors import ContractError
from minisgl_spec.invariants import INVARIANTS

CORE = "minisgl_ref.core"
CONFIG = {
    "page_size": 1,
    "num_pages": 8,
    "num_rows": 2,
    "max_seq_len": 8,
    "token_budget": 8,
    "overlap": True,
    "vocab_size": 16,
}


def fault_of(anchor: str, replacement: str, module: str = CORE) -> Fault:
    return Fault("made_up", (Edit(module, anchor, replacement),), "lengths_ordered", "nothing", "Made up.")


GROWTH, STANDSTILL = "        self.device_len += 1\n", "        self.device_len += 0\n"
NO_GROWTH = fault_of(GROWTH, STANDSTILL)


def test_loading_a_fault_leaves_the_engine_as_it_is() -> None:
    """The same modules are imported, and none of them has changed. (zoo/fault.py)"""
    before = dict(sys.modules)
    path = list(sys.meta_path)

    load(NO_GROWTH)

    ours = {name: module for name, module in sys.modules.items() if name.startswith("minisgl_ref")}
    assert ours == {name: module for name, module in before.items() if name.startswith("minisgl_ref")}
    assert sys.meta_path == path


def test_a_faulty_engine_has_the_fault_and_the_real_one_has_not() -> None:
    """Both run side by side. (zoo/fault.py)"""
    faulty = load(NO_GROWTH).make_engine_target(CONFIG)
    right = minisgl_ref.testing.make_engine_target(CONFIG)
    faulty.submit(1, (1, 2), 3)
    right.submit(1, (1, 2), 3)

    faulty.step()
    right.step()

    assert [request.device_len for request in faulty.view().requests] == [2]
    assert [request.device_len for request in right.view().requests] == [3]


def test_copies_share_errors_and_check_levels_and_nothing_else() -> None:
    """A check of a faulty engine raises the error that everybody knows. (zoo/fault.py)"""
    engine = load(NO_GROWTH)

    assert engine.module("minisgl_ref.checks") is minisgl_ref.checks
    assert engine.module("minisgl_ref.scheduler.scheduler").Scheduler is not Scheduler
    assert engine.module("minisgl_ref.scheduler.scheduler").Refusal is errors.Refusal


def test_a_fault_is_loaded_once() -> None:
    """Engines of one fault share their modules. (zoo/fault.py)"""
    assert load(fault_of(GROWTH, STANDSTILL)) is load(NO_GROWTH)


def test_a_faulty_engine_does_not_claim_the_oracles_decisions() -> None:
    """What finds a fault is a judge. (zoo/fault.py)"""
    faulty = load(NO_GROWTH).make_engine_target(CONFIG)
    right = minisgl_ref.testing.make_engine_target(CONFIG)

    assert right.capabilities - faulty.capabilities == {"exact"}


@pytest.mark.parametrize(("anchor", "count"), [("no such line", 0), ("    @property\n", 6)])
def test_an_anchor_that_does_not_occur_exactly_once_is_refused(anchor: str, count: int) -> None:
    """The source has moved on, and nothing is loaded. (zoo/fault.py)"""
    with pytest.raises(ContractError) as refused:
        load(fault_of(anchor, ""))

    assert refused.value.need == "an anchor that occurs exactly once"
    assert refused.value.got == {
        "fault": "made_up",
        "module": CORE,
        "count": count,
        "anchor": repr(anchor),
    }


def test_a_module_that_was_not_loaded_is_refused() -> None:
    """By its name. (zoo/fault.py)"""
    with pytest.raises(ContractError) as refused:
        load(NO_GROWTH).module("minisgl_ref.demo")

    assert refused.value.got == {"name": "minisgl_ref.demo"}


@pytest.mark.parametrize("number", UNDOS)
def test_every_undo_matches_the_source_and_names_a_rule(number: int) -> None:
    """A deviation's undo is a change of source that is up to date. (deviations.md)"""
    fault = UNDOS[number]

    changed = {module: faulty_source(fault, module) for module in fault.places}

    assert all(compile(source, module, "exec") for module, source in changed.items())
    assert fault.rule in {*INVARIANTS, *CONTRACTS}
    assert fault.undoes.startswith(f"deviation {number},")
