"""The zoo's register: every fault matches the source, says what it is, and names a rule that exists.

What they do is hunted in `test_faults_found.py`.
Guide: tests/README.md
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import minisgl_ref.zoo
from minisgl_conformance.rules import sentence_of
from minisgl_ref.zoo import FAULTS, deviations, later_deviations
from minisgl_ref.zoo.fault import CACHE, ENGINE, Edit, Fault, faulty_source, load
from minisgl_spec.invariants import JUDGES

NAMES = tuple(FAULTS)
TABLE = Path(minisgl_ref.zoo.__file__).with_name("table.json")
UNDOS = {**deviations.UNDOS, **later_deviations.UNDOS}


def test_the_zoo_has_a_hundred_faults_of_many_real_bugs() -> None:
    """At least 100 faults, modelled on at least 45 entries of the corpus of real bugs. (zoo/__init__.py)"""
    bugs = {bug for fault in FAULTS.values() for bug in fault.bugs}

    assert len(FAULTS) >= 100
    assert len(bugs) >= 45


def test_the_zoo_has_every_deviation() -> None:
    """Each of the sixteen deviations has its undo. (deviations.md)"""
    assert list(UNDOS) == list(range(1, 17))
    assert [fault.name for fault in UNDOS.values() if fault.name not in FAULTS] == []
    assert [
        fault.undoes for number, fault in UNDOS.items() if f"deviation {number}," not in fault.undoes
    ] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_matches_the_source(name: str) -> None:
    """Each anchor occurs exactly once, and the changed source compiles. (zoo/fault.py)"""
    fault = FAULTS[name]

    sources = {module: faulty_source(fault, module) for module in fault.places}

    assert fault.name == name
    assert all(compile(source, module, "exec") for module, source in sources.items())


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_says_what_it_is(name: str) -> None:
    """A sentence, a rule that exists, a level, its judges, and why they are fewer than two. (zoo/fault.py)"""
    fault = FAULTS[name]

    assert fault.sentence.endswith(".")
    assert sentence_of(fault.rule)
    assert fault.undoes
    assert fault.level in (CACHE, ENGINE)
    assert set(fault.judges) <= set(JUDGES)
    assert len(fault.judges) >= 2 or fault.why.endswith(".")


def test_the_table_is_of_this_zoo() -> None:
    """Every fault was hunted and found, and is seen by the judges that it says. (zoo/table.md)"""
    hunts = json.loads(TABLE.read_text(encoding="utf-8"))["hunts"]

    assert [(hunted["name"], hunted["level"], hunted["rule"]) for hunted in hunts] == [
        (fault.name, fault.level, fault.rule) for fault in FAULTS.values()
    ]
    assert [hunted["name"] for hunted in hunts if not hunted["found"]] == []
    assert {hunted["name"]: tuple(hunted["judges"]) for hunted in hunts} == {
        fault.name: fault.judges for fault in FAULTS.values()
    }


@pytest.mark.slow
def test_every_fault_loads() -> None:
    """Each fault's engine can be built, all in one process. (zoo/fault.py)"""
    engines = [load(fault) for fault in FAULTS.values()]

    assert [engine.is_exact for engine in engines] == [fault.is_exact for fault in FAULTS.values()]
    assert len({id(engine) for engine in engines}) == len(NAMES)


def test_a_change_prints_as_what_goes_and_what_comes() -> None:
    """A fault shows its place and its change. (zoo/fault.py)"""
    fault = Fault("made_up", (Edit("here", "a\nb", "c"),), "lengths_ordered", "SG-1, L2 and SG-1", "Made up.")

    assert fault.change == "here\n- a\n- b\n+ c"
    assert fault.bugs == ("SG-1", "L2")


def test_a_cache_is_made_with_its_fault() -> None:
    """A fault of the tree can be hunted without an engine around it. (zoo/fault.py)"""
    engine = load(FAULTS["protected_size_never_falls"])
    cache = engine.make_cache({"page_size": 1, "num_pages": 4, "cache": "radix"})
    handle = cache.insert_prefix(bytes(8), [0, 1]).handle

    cache.lock(handle)
    cache.unlock(handle)

    assert (cache.evictable_size, cache.protected_size) == (2, 2)
