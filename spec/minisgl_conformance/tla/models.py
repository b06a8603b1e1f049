"""Models: what TLC must say of each, and whether it does.

`tla/manifest.json` lists every model: the model file and module, the set of configurations, the
mistake it makes, and what comes of it. A model that must pass has its numbers of states pinned, so
that an action that is gone, or a guard that never holds, is noticed; one that must fail has the rule
that refutes it and the length of the counterexample.

Nothing here generates states or traces.
Chapter: tla/README.md
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minisgl_conformance.tla import tlc
from minisgl_spec.errors import ContractError

SMALL, LARGE = "small", "large"
"""Sizes: less than ten seconds, part of `make test`; minutes, `make tla` only."""


@dataclass(frozen=True)
class Model:
    """One line of the manifest; `sentence` says what the model shows."""

    name: str
    module: str
    model_file: str
    configurations: str
    mistake: str
    size: str
    workers: int
    result: str
    rule: str | None
    distinct: int | None  # None: not pinned
    total: int | None
    depth: int | None
    sentence: str

    @property
    def must_fail(self) -> bool:
        """Whether TLC has to refute it."""
        return self.result == tlc.REFUTED


@dataclass(frozen=True)
class Checked:
    """A model and what TLC said of it."""

    model: Model
    outcome: tlc.Outcome

    @property
    def problems(self) -> tuple[str, ...]:
        """What differs from the manifest, with both values."""
        expected = {
            name: getattr(self.model, name) for name in ("result", "rule", "distinct", "total", "depth")
        }
        found = {name: getattr(self.outcome, name) for name in expected}
        return tuple(
            f"{name} is {found[name]}, pinned {value}"
            for name, value in expected.items()
            if (value is not None or name == "rule") and found[name] != value
        )


def load_manifest(tla: Path) -> tuple[Model, ...]:
    """Read the manifest of a folder.

    Raises: ContractError if two models have one name.
    """
    lines: list[dict[str, Any]] = json.loads((tla / "manifest.json").read_text())["models"]
    models = tuple(Model(**line) for line in lines)
    names = [model.name for model in models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ContractError("load_manifest", "one model of each name", {"twice": twice})
    return models


def model_text(model: Model, tla: Path) -> str:
    """Return the model file that TLC is given: the named one with the mistake and the configurations."""
    text = (tla / model.model_file).read_text()
    text = re.sub(r"(?m)^(\s*mistake =).*$", rf'\1 "{model.mistake}"', text)
    return re.sub(r"(?m)^(\s*configurations <-).*$", rf"\1 {model.configurations}", text)


def check(model: Model, tla: Path, most_seconds: float | None = None) -> Checked:
    """Run TLC on a model; after `most_seconds` it is stopped, and has failed."""
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        config = Path(folder) / f"{model.name}.cfg"
        config.write_text(model_text(model, tla))
        outcome = tlc.run(
            tla / f"{model.module}.tla", config, workers=model.workers, most_seconds=most_seconds
        )
    if outcome.rule == tlc.LIVENESS:
        outcome = replace(outcome, rule=_only_property(model_text(model, tla)))
    return Checked(model, outcome)


def _only_property(text: str) -> str:
    """Return the property of a model file that has one: TLC does not say which temporal property fails."""
    names = re.findall(r"\w+", text.split("PROPERTIES")[-1])
    return names[0] if len(names) == 1 else tlc.LIVENESS


def check_all(models: Iterable[Model], tla: Path) -> Iterator[Checked]:
    """Run TLC on one model after the other."""
    for model in models:
        yield check(model, tla)


def row(checked: Checked) -> str:
    """Return a line of the table."""
    model, outcome = checked.model, checked.outcome
    verdict = "as pinned" if not checked.problems else "; ".join(checked.problems)
    result = outcome.result if outcome.rule is None else f"{outcome.result} by {outcome.rule}"
    counts = f"{outcome.distinct:>9,} {outcome.total:>10,} {outcome.depth:>5}"
    return f"{model.name:<34} {result:<42} {counts} {outcome.seconds:>6.1f} s  {verdict}"


def table_head() -> str:
    """Return the head of the table."""
    counts = f"{'distinct':>9} {'total':>10} {'depth':>5}"
    return f"{'model':<34} {'result':<42} {counts} {'time':>8}  against the manifest"


def total_line(checked: Iterable[Checked]) -> str:
    """Return the line under the table."""
    done = tuple(checked)
    passed = [one for one in done if not one.model.must_fail]
    failing = [one for one in done if one.model.must_fail]
    states = sum(one.outcome.distinct for one in passed if one.outcome.result == tlc.PASSED)
    refuted = sum(not one.problems for one in failing)
    seconds = sum(one.outcome.seconds for one in done)
    different = sum(bool(one.problems) for one in done)
    return (
        f"{len(done)} models in {seconds:.0f} s: {states:,} distinct states exhausted in {len(passed)}, "
        f"{refuted} of {len(failing)} refuted as pinned, {different} not as pinned"
    )
