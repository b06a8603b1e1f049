"""Benchmarks of the prefix cache: a production trace, eviction at growing sizes, and a yardstick.

A figure in microseconds says little on an unknown machine, so each is printed beside the time of a
fixed loop of plain Python on the same machine in the same run. Figures are medians of several runs,
in processor time of this process: one thread that never waits, so neighbours count little.

Nothing here judges correctness but the hits of the trace, which are the same on every machine.
Chapter: spec/03-locks-and-eviction.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from minisgl_ref.bench.calibration import calibrate
from minisgl_ref.bench.eviction import LEAVES, bench_eviction
from minisgl_ref.bench.mooncake import TRACE_VARIABLE, bench_mooncake, trace_path


def run(report: Callable[[str], None], repeats: int = 5) -> dict[str, object]:
    """Run every benchmark, telling `report` one line at a time, and return the figures.

    The trace is left out, with its reason, where `TRACE_VARIABLE` names no file.

    Args:
        report:   takes each line as it is measured.
        repeats:  runs per figure; the median is reported.

    Returns: calibration_us, mooncake (one entry per pool), eviction (one entry per number of leaves).
    """
    calibration_us = calibrate()
    report(f"calibration loop: {calibration_us:.0f} us")
    figures: dict[str, object] = {"calibration_us": calibration_us}
    figures["mooncake"] = list(_mooncake(report, repeats))
    figures["eviction"] = list(_eviction(report, repeats))
    return figures


def _mooncake(report: Callable[[str], None], repeats: int) -> Iterator[dict[str, object]]:
    path = trace_path()
    if path is None:
        report(f"mooncake: skipped; set {TRACE_VARIABLE} to conversation_trace.jsonl")
        return
    for result in bench_mooncake(path, repeats=repeats):
        report(str(result))
        yield result.as_dict()


def _eviction(report: Callable[[str], None], repeats: int) -> Iterator[dict[str, object]]:
    for num_leaves in LEAVES:
        result = bench_eviction(num_leaves, repeats=repeats)
        report(str(result))
        yield result.as_dict()
