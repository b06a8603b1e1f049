"""Every guard of every action matters: without it some pinned number or rule of a small model differs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from minisgl_conformance.tla import models

FOLDER = Path(__file__).parents[2] / "tla"
MODELS = {model.name: model for model in models.load_manifest(FOLDER)}

CHANGES = ("'", "UNCHANGED", "hand_over", "give_when_done", "launch(tokens)", "submit(", "mistake \\notin")
"""What a conjunct that changes something mentions; the others of an action are its guards."""

NAMED = {
    "PrefixCache": (),
    "Scheduler": (
        "can_walk",
        "is_between_operations",
        "is_chosen",
        "can_launch",
        "is_nothing_chosen",
        "is_processing_due",
        "is_due",
        "is_waiting_for_retired",
    ),
}
"""Guards with a name, which actions share: each of their conjuncts is a guard of its own."""

JUDGES = {
    "PrefixCache": ("PrefixCache",),
    "Scheduler": (
        "Scheduler",
        "SchedulerLate",
        "SchedulerLimits",
        "SchedulerPairs",
        "SchedulerMatched",
        "RefusedBeforeLock",
        "SchedulerProgress",
    ),
}
"""The small models that are asked, the quickest and most telling first."""

MOST_SECONDS = 60.0
"""A model that has not ended by then has more states than are pinned, many times over."""


@dataclass(frozen=True)
class Guard:
    """A conjunct of a definition: where it starts and ends in the text of its module."""

    module: str
    name: str
    start: int
    end: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}: {' '.join(self.text.split())}"


def guards(module: str) -> list[Guard]:
    """Return the guards of a module's actions, one per conjunct, each conjunct of one line by itself."""
    text = (FOLDER / f"{module}.tla").read_text()
    found = []
    for definition in re.finditer(r"(?m)^(\w+)(?:\([^)=]*\))? ==(?:.*\n(?!\n|\w|\(\*|\\\*|====))*.*", text):
        name, body = definition.group(1), definition.group(0)
        is_action = re.search(r"event' =", body) or name in ("launch_any", "submit_any")
        if not is_action and name not in NAMED[module]:
            continue
        for start, end in _conjuncts(body):
            part = body[start:end]
            if not any(change in part for change in CHANGES):
                found.append(Guard(module, name, definition.start() + start, definition.start() + end, part))
    return found


def _conjuncts(body: str) -> list[tuple[int, int]]:
    """Return where the conjuncts of a definition are: a list of /\\ by indentation, or one line of them."""
    bullets = [(match.start(1), match.end(1)) for match in re.finditer(r"(?m)^(?: *IN)? *(/\\) ", body)]
    if not bullets:
        start = body.index("==") + 2
        spans = [(start, len(body))]
    else:
        column = min(_column(body, start) for start, _ in bullets)
        tops = [(start, end) for start, end in bullets if _column(body, start) == column]
        spans = [
            (end, tops[idx + 1][0] if idx + 1 < len(tops) else len(body)) for idx, (_, end) in enumerate(tops)
        ]
    return [piece for start, end in spans for piece in _split(body, start, end)]


def _column(body: str, at: int) -> int:
    return at - (body.rfind("\n", 0, at) + 1)


def _split(body: str, start: int, end: int) -> list[tuple[int, int]]:
    """Split a conjunct of one line at its own /\\; leave one with \\/ or => or a quantifier whole."""
    part = body[start:end].rstrip()
    end = start + len(re.sub(r"\s+(?:IN)?\s*$", "", part))
    part = body[start:end]
    if any(mark in part for mark in ("\\/", "=>", "\\E", "\\A", "CASE", "IF", "\n")):
        return [(start, end)]
    pieces, at = [], start
    for piece in part.split("/\\"):
        pieces.append((at, at + len(piece.rstrip())))
        at += len(piece) + 2
    return pieces


def without(guard: Guard, folder: Path) -> Path:
    """Write the modules, one of them without a guard, to a folder."""
    for path in [*FOLDER.glob("*.tla"), *FOLDER.glob("*.cfg")]:
        text = path.read_text()
        if path.stem == guard.module and path.suffix == ".tla":
            text = f"{text[: guard.start]} TRUE{text[guard.end :]}"
        (folder / path.name).write_text(text)
    return folder


GUARDS = [guard for module in NAMED for guard in guards(module)]


def test_the_guards_are_found():
    """Those of both modules, the ones with a name and the ones without. (tla/README.md)"""
    texts = {str(guard) for guard in GUARDS}

    assert "Scheduler.refuse: why # 0" in texts
    assert "Scheduler.can_walk: host.budget > 0" in texts
    assert "PrefixCache.insert: num_fresh <= Len(free_pages)" in texts


@pytest.mark.slow
@pytest.mark.parametrize("guard", [pytest.param(guard, id=str(guard)) for guard in GUARDS])
def test_a_model_without_a_guard_is_not_as_pinned(tla: Path, tmp_path: Path, guard: Guard):
    """Some small model is refuted, fails, or has other numbers. (tla/README.md#models-that-must-fail)"""
    folder = without(guard, tmp_path)

    assert any(models.check(MODELS[name], folder, MOST_SECONDS).problems for name in JUDGES[guard.module]), (
        f"nothing differs without {guard}"
    )
