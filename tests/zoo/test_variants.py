"""Variants of the tree and the managers: right, not like ours, and let pass by every judge; each with a
fault added is found.

Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minisgl_ref.zoo import FAULTS
from minisgl_ref.zoo.fault import load
from minisgl_ref.zoo.variants import VARIANTS

FEW = {"cache": 60, "engine": 12}
"""Programs of a right variant in `make test`."""

MANY = {("cache", "engine"): {"cache": 16_000, "engine": 4_000}, ("engine",): {"engine": 20_000}}
"""Programs of a right variant under `make slow`, by its levels: 20,000 in all."""

LEVELS = [(name, level) for name, variant in VARIANTS.items() for level in variant.levels]


def test_there_are_a_dozen_variants() -> None:
    """At least 12 engines are right and not like ours, and each names a fault. (variants.py)"""
    assert len(VARIANTS) >= 12
    assert [variant.name for variant in VARIANTS.values() if variant.wrong not in FAULTS] == []


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_does_not_claim_the_oracles_decisions(name: str) -> None:
    """What a variant is held to are the rules, not our policy. (variants.py)"""
    config = {"page_size": 1, "num_pages": 8, "num_rows": 2, "max_seq_len": 8, "token_budget": 8}
    variant = VARIANTS[name]

    target = load(variant.right("engine")).make_engine_target({**config, "overlap": True, "vocab_size": 6})

    assert "exact" not in target.capabilities


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_a_variant_that_is_right_passes(hunt: Callable[..., Any], name: str, level: str) -> None:
    """No judge complains of a decision that the rules permit. (variants.py)"""
    assert hunt(VARIANTS[name].right(level), level, seed=4, programs=FEW[level]) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_a_variant_that_is_right_passes_for_long(hunt: Callable[..., Any], name: str, level: str) -> None:
    """No finding in 20,000 programs of a variant. (variants.py)"""
    variant = VARIANTS[name]

    assert hunt(variant.right(level), level, seed=3, programs=MANY[variant.levels][level]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_with_a_fault_is_found(hunt: Callable[..., Any], name: str) -> None:
    """The judges that let a variant pass still see what is wrong with it. (variants.py)"""
    wrong = VARIANTS[name].with_fault()

    found = hunt(wrong, wrong.level, seed=3, programs=1500)

    assert len(found) == 1
