"""Mutation testing: which changes are made, what notices them, and that every survivor has its reason.

`make mutation` judges a sample, and `make slow` all of it; here it is shown that the judge judges.
Guide: tests/README.md
"""

from __future__ import annotations

import ast
from dataclasses import replace

import parso
import pytest

from minisgl_conformance.adapters import zoo
from minisgl_conformance.mutation import judge as judging
from minisgl_conformance.mutation.__main__ import judge_all, main
from minisgl_conformance.mutation.judge import DIED, MODULES, OUT_OF_TIME, Verdict, judge
from minisgl_conformance.mutation.mutants import (
    Key,
    Mutant,
    function_at,
    has_place,
    mutant_at,
    mutants,
    no_behaviour,
    places_of,
)
from minisgl_conformance.mutation.operators import LeaveOutStatement, ReverseAugmentation
from minisgl_conformance.mutation.survivors import (
    EQUIVALENT,
    OUT_OF_SCOPE,
    VERDICTS,
    Reason,
    Score,
    load_reasons,
)

DECODE, RADIX, CORE = "minisgl_ref.scheduler.decode", "minisgl_ref.kvcache.radix_cache", "minisgl_ref.core"

CLASS = """
if TYPE_CHECKING:
    import there

class Some:
    size: int | None = 0

    def __init__(self, level: int | str = 1) -> None | int:
        self.level = level
        self._known = False
        self.size = 1

    def take(self, size):
        if size < 0:
            raise ValueError("size", size + 1)
        if self.level and size in self.seen:
            self._check(size - 1)
        return size

    def _check(self, size):
        self._known = not self._other(size)

    def _other(self, size):
        if self._known:
            self._refuse(size)

    def _refuse(self, size) -> NoReturn:
        raise ValueError(size)
"""

KNOWN = {
    "minisgl_ref.kvcache.base": ("self.in_tree = True", "self.in_tree = False"),
    RADIX: ("child.last_used = tick", "pass"),
    "minisgl_ref.kvcache.naive_cache": ("self._root.ref_count += 1", "self._root.ref_count -= 1"),
    "minisgl_ref.scheduler.cache": ("free.extend(self.last_evicted)", "pass"),
    "minisgl_ref.scheduler.table": ("self.free_rows.append(row)", "pass"),
    "minisgl_ref.scheduler.prefill": ("if budget <= 0:", "if budget < 0:"),
    DECODE: ("self.running.pop(req.uid, None)", "pass"),
    "minisgl_ref.scheduler.scheduler": ("if last <= batch:", "if last < batch:"),
    CORE: ("self.cached_len = self.device_len", "pass"),
}
"""A mutant of each module."""


def changed(module: str, old: str, new: str) -> str:
    """The source of a module with one line changed."""
    source = zoo.source_of(module)
    assert source.count(old) == 1
    return source.replace(old, new)


def test_what_changes_no_behaviour_is_left_out() -> None:
    """Annotations, messages, what only type checkers see, and the engine's own checks. (mutants.py)"""
    left_out = {ast.unparse(node).splitlines()[0] for node in no_behaviour(ast.parse(CLASS))}

    assert left_out == {
        "if TYPE_CHECKING:",
        "int | None",
        "int | str",
        "None | int",
        "'size'",
        "size + 1",
        "if self.level and size in self.seen:",
        "self.level = level",
        "self._check(size - 1)",
        "def _check(self, size):",
        "def _other(self, size):",
        "self._known = False",
        "self._known = not self._other(size)",
        "def _refuse(self, size) -> NoReturn:",
        "NoReturn",
        "size",
    }


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("minisgl_ref.scheduler.cache", "CacheManager._check_sums"),
        ("minisgl_ref.scheduler.cache", "CacheManager.check_integrity"),
        ("minisgl_ref.kvcache.base", "PrefixCache._refuse_evict"),
    ],
)
def test_checks_and_messages_of_the_engine_are_left_out(module: str, function: str) -> None:
    """The suite runs with checks off, so that it is the suite that judges. (mutants.py)"""
    functions = [function_at(module, place.start[0])[0] for place in places_of(module)]

    assert functions.count(function) == 0
    assert functions.count("") < len(functions)


def test_every_module_has_mutants() -> None:
    """Nothing is left out whole. (judge.py)"""
    assert [module for module in MODULES if not list(places_of(module))] == []


def test_a_seed_draws_the_same_mutants() -> None:
    """A sample is the beginning of the whole, in an order of the seed. (mutants.py)"""
    whole = list(mutants([DECODE], seed=1))

    assert list(mutants([DECODE], seed=1, count=2)) == whole[:2]
    assert sorted(mutant.key for mutant in mutants([DECODE], seed=2)) == sorted(
        mutant.key for mutant in whole
    )
    assert len({mutant.source for mutant in whole}) == len(whole)


def test_a_mutant_is_called_by_its_lines() -> None:
    """A key holds whatever lines move around it. (mutants.py)"""
    found = [mutant_at(place) for place in places_of(DECODE)]

    assert [mutant.key for mutant in found if mutant is not None] == [
        Key(DECODE, "DecodeManager.add", "self.running[req.uid] = req", "pass"),
        Key(DECODE, "DecodeManager.remove", "self.running.pop(req.uid, None)", "pass"),
        Key(
            DECODE,
            "DecodeManager.schedule",
            "return [req for req in self.running.values() if req.can_decode]",
            "pass",
        ),
    ]
    assert all(has_place(mutant.key) for mutant in found if mutant is not None)
    assert not has_place(Key(DECODE, "DecodeManager.add", "self.running[req.uid] = req", "pass", nth=1))
    assert not has_place(Key(DECODE, "DecodeManager.gone", "return", "pass"))


@pytest.mark.parametrize(
    ("source", "becomes"),
    [
        ("a.b = 1\n", ["pass\n"]),
        ("f(1)\n", ["pass\n"]),
        ("del a[0]\n", ["pass\n"]),
        ("a += 1\n", ["pass\n", "a -= 1\n"]),
        ("a = 1\n", []),
        ("a: int = 1\n", []),
        ("'text'\n", []),
        ("assert a\n", []),
        ("pass\n", []),
        ("def f():\n    return None\n", []),
        ("def f():\n    return 1\n", ["def f():\n    pass\n"]),
    ],
)
def test_statements_are_left_out_and_sums_reversed(source: str, becomes: list[str]) -> None:
    """What a statement does is what a scheduler does. (operators.py)"""
    made = []
    for operator in (LeaveOutStatement(), ReverseAugmentation()):
        tree = parso.parse(source)
        places = [node for node in nodes_of(tree) if list(operator.mutation_positions(node))]
        made += [(operator.mutate(node, 0), tree.get_code())[1] for node in places]

    assert made == becomes


def nodes_of(node: object) -> list[object]:
    """A node and all below it."""
    return [node, *(inner for child in getattr(node, "children", ()) for inner in nodes_of(child))]


@pytest.mark.parametrize("module", KNOWN)
def test_a_mutant_of_each_module_is_killed(module: str) -> None:
    """The suite notices, and names a rule. (judge.py)"""
    verdict = judge(module, changed(module, *KNOWN[module]))

    assert verdict.killed_by
    assert verdict.level == MODULES[module][0]


def test_the_engine_itself_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    """No change, no complaint. (judge.py)"""
    monkeypatch.setattr(judging, "PROGRAMS", dict.fromkeys(judging.PROGRAMS, 20))
    monkeypatch.setattr(judging, "EXAMPLES", dict.fromkeys(judging.EXAMPLES, 2))

    assert judge(RADIX, zoo.source_of(RADIX)).killed_by == ""


@pytest.mark.slow
@pytest.mark.parametrize("module", [RADIX, CORE])
def test_the_engine_itself_survives_the_whole_budget(module: str) -> None:
    """No change, no complaint. (judge.py)"""
    assert judge(module, zoo.source_of(module)).killed_by == ""


def test_a_mutant_that_cannot_be_imported_is_killed() -> None:
    """The error is told. (judge.py)"""
    verdict = judge(DECODE, "import nothing_of_this_name\n")

    assert verdict == replace(
        verdict, killed_by="raises ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )


def test_a_mutant_that_never_ends_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program has so much processor time. (judge.py)"""
    monkeypatch.setattr(judging, "SECONDS", 0.5)

    verdict = judge(
        RADIX, changed(RADIX, "heapreplace(queue, node.last_used << ID_BITS | node.node_id)", "pass")
    )

    assert (verdict.killed_by, verdict.level) == (OUT_OF_TIME, "cache")


@pytest.mark.slow
def test_a_mutant_that_ends_its_process_is_killed_and_the_next_one_judged() -> None:
    """A worker is started again. (mutation/__main__.py)"""
    key = Key(DECODE, "", "", "")
    deadly, broken = (Mutant(key, source) for source in ("import os\nos._exit(1)\n", "nothing\n"))

    verdicts = [verdict.killed_by for _, verdict in judge_all([deadly, broken], workers=1)]

    assert verdicts == [DIED, "raises NameError: name 'nothing' is not defined"]


def test_every_reason_is_a_sentence_about_a_place_that_exists() -> None:
    """When the source has moved on, so must the reason. (survivors.json)"""
    reasons = load_reasons()

    assert [str(key) for key in reasons if not has_place(key) or key.module not in MODULES] == []
    assert [str(key) for key, reason in reasons.items() if reason.verdict not in VERDICTS] == []
    assert [str(key) for key, reason in reasons.items() if not reason.sentence.endswith(".")] == []


def test_the_score_leaves_equivalent_mutants_out_and_a_stale_reason_fails() -> None:
    """Killed, of those that are not equivalent. (survivors.py)"""
    a, b, c, d = (Mutant(Key("m", "f", line, "pass"), line) for line in "abcd")
    survived, killed = Verdict(""), Verdict("lengths_ordered", "engine")
    reasons = {a.key: Reason(EQUIVALENT, "The same."), b.key: Reason(OUT_OF_SCOPE, "Not ours.")}

    score = Score({a: survived, b: survived, c: killed, d: survived}, reasons)

    assert (score.killed, score.equivalent, score.score) == (1, 1, 1 / 3)
    assert score.of("") == [d.key]
    assert not score.is_good
    assert Score({a: survived, c: killed}, reasons).is_good
    assert Score({b: killed, c: killed}, reasons).stale == [b.key]
    assert not Score({b: killed, c: killed}, reasons).is_good


@pytest.mark.slow
def test_the_suite_kills_the_mutants_of_tree_managers_and_scheduler(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of them, not a sample. (mutation/__main__.py)"""
    assert main(["--workers", "1"]) == 0, capsys.readouterr().out
