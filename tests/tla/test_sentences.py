"""The models repeat the invariants of the spec: same name, same sentence, or a reason why not."""

import json
import re
from pathlib import Path

import pytest

from minisgl_spec.contracts import CONTRACTS
from minisgl_spec.invariants import INVARIANTS

TLA = Path(__file__).parents[2] / "tla"
NOT_MODELLED = json.loads((TLA / "manifest.json").read_text())["not_modelled"]
CLAIMS = {name: claim.sentence for name, claim in {**INVARIANTS, **CONTRACTS}.items()}
MODULES = ("PrefixCache", "Scheduler")


def sentences(module: str) -> dict[str, str]:
    """Return the comment directly above every definition of a module."""
    text = (TLA / f"{module}.tla").read_text()
    found = re.findall(r"^\(\* ((?:(?!\*\)).)*?) \*\)\n(\w+) ==", text, re.MULTILINE | re.DOTALL)
    return {name: " ".join(comment.split()) for comment, name in found}


def modelled() -> set[str]:
    """Return the names that some model file checks."""
    texts = [path.read_text() for path in TLA.glob("*.cfg")]
    return {name for text in texts for name in re.findall(r"\w+", text)} & set(CLAIMS)


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_every_rule_is_modelled_or_listed_with_a_reason(name: str):
    """A rule of the spec is checked by a model, or the manifest says why it is not. (tla/README.md)"""
    assert (name in modelled()) != (name in NOT_MODELLED), NOT_MODELLED.get(
        name, "neither modelled nor listed"
    )


@pytest.mark.parametrize("module", MODULES)
def test_a_modelled_rule_repeats_the_sentence_of_the_spec(module: str):
    """Invariants and contracts carry the sentence of their Python function, word for word. (tla/README.md)"""
    found = {name: text for name, text in sentences(module).items() if name in CLAIMS}

    assert found == {name: CLAIMS[name] for name in found}
    assert len(found) > 10


def test_every_checked_name_is_defined_with_its_sentence():
    """What a model file lists is defined in a module, under the spec's sentence. (tla/README.md)"""
    assert modelled() <= set().union(*(sentences(module) for module in MODULES))


def test_nothing_is_listed_as_not_modelled_that_does_not_exist():
    """A reason that outlived its rule is removed. (tla/README.md)"""
    assert set(NOT_MODELLED) <= set(CLAIMS)


def test_every_mistake_of_the_modules_is_in_the_manifest():
    """A guard that can be left out is left out by some model. (tla/README.md)"""
    named = {
        (path.stem, name)
        for path in TLA.glob("*.tla")
        for name in re.findall(r'mistake (?:=|#|\\notin) \{?"(\w+)"', path.read_text())
    }
    models = json.loads((TLA / "manifest.json").read_text())["models"]

    assert {name for _, name in named} <= {model["mistake"] for model in models}
