"""Our engine goes through the fuzzer like anyone's, and is held to the oracle's exact decisions."""

from __future__ import annotations

from minisgl_conformance import run_conformance
from minisgl_conformance.adapters.ours import OurCache, make_engine


def test_our_cache_takes_the_oracles_decisions() -> None:
    """The engine's tree: every result, every size and every view as the oracle's. (02-radix-tree.md)"""
    summary = run_conformance(OurCache, "cache", examples=50, seed=3)

    assert (summary.findings, summary.not_claimed) == ([], ())


def test_our_engine_takes_the_oracles_decisions() -> None:
    """The engine on its kernels: events and views as the oracle's, every slot right. (07-overlap.md)"""
    summary = run_conformance(make_engine, "engine", examples=15, seed=3)

    assert (summary.findings, summary.not_claimed) == ([], ())
