"""One name and one sentence per rule, everywhere: in docstrings, in the generated page, in the deviations.

Guide: spec/README.md
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisgl_spec.contracts import CONTRACTS, Contract
from minisgl_spec.invariants import INVARIANTS, Invariant

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("spec/minisgl_spec", "spec/minisgl_conformance", "kernels/minisgl_kernels", "minisgl_ref")
RULES: dict[str, Invariant | Contract] = {**INVARIANTS, **CONTRACTS}
KEEPS = re.compile(r"^ *Keeps: *(?P<names>[^\n]*(?:\n(?! *[A-Z]\w*:)[^\n]*\S[^\n]*)*)", re.MULTILINE)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
RULE_LINE = re.compile(r"^Rule: (?P<rules>.*?)(?=\n\n|\nTest:)", re.MULTILINE | re.DOTALL)
TEST_LINE = re.compile(r"^Test: \[[^]]*\]\(\.\./(?P<path>[^)]+)\)", re.MULTILINE)


def docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the four packages, with file:line."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node)
                    if text is not None:
                        yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


def test_every_rule_has_one_name() -> None:
    """No contract has the name of an invariant, and each is registered under its own name. (invariants.md)"""
    assert set(INVARIANTS) & set(CONTRACTS) == set()
    assert {name: rule.name for name, rule in RULES.items()} == {name: name for name in RULES}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_exactly_one_sentence(name: str) -> None:
    """The docstring of an invariant or contract is one sentence with a full stop. (invariants.md)"""
    sentence = RULES[name].sentence

    assert [end.end() for end in SENTENCE_END.finditer(sentence)] == [len(sentence)], sentence


def test_keeps_names_only_rules_that_exist() -> None:
    """A docstring's `Keeps:` names invariants and contracts, or "every invariant". (CONTRIBUTING.md)"""
    wrong = [
        f"{place} keeps {name}"
        for place, text in docstrings()
        for match in KEEPS.finditer(text)
        for name in re.findall(r"[A-Za-z_]\w*", match["names"].replace("every invariant", ""))
        if name not in RULES
    ]

    assert wrong == []


def test_a_keeps_heading_may_go_over_several_lines() -> None:
    """Names are read up to the next heading. (CONTRIBUTING.md)"""
    text = "Mutates: it.\nKeeps:   one_rule, another_rule,\n         a_third_rule.\nSpec:    x.md#insert\n"

    assert [re.findall(r"\w+", match["names"]) for match in KEEPS.finditer(text)] == [
        ["one_rule", "another_rule", "a_third_rule"]
    ]


def test_generated_pages_are_up_to_date() -> None:
    """invariants.md and every included block are what generate_docs.py writes. (spec/README.md)"""
    path = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/house/generate_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("number", range(1, 17))
def test_a_deviation_names_its_rule_and_its_test(number: int) -> None:
    """Each deviation says which rule excludes upstream's way, and which test would fail. (deviations.md)"""
    text = (ROOT / "spec" / "deviations.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", text, flags=re.MULTILINE)[number]
    rules = RULE_LINE.search(section)
    test = TEST_LINE.search(section)

    assert section.startswith(f"{number} ")
    assert rules is not None
    assert [name for name in re.findall(r"`(\w+)`", rules["rules"]) if name not in RULES] == []
    assert re.findall(r"`(\w+)`", rules["rules"]) != []
    assert test is not None
    assert (ROOT / test["path"]).is_file(), test["path"]
