"""Benchmarks: the prefix cache on a production trace and at growing sizes, kernels, serving, and a yardstick.

A figure in microseconds says little on an unknown machine, so each is printed beside the time of a
fixed loop of plain Python on the same machine in the same run. Figures are medians of several runs,
in processor time of this process: one thread that never waits, so neighbours count little. Serving is
measured by the clock, beside transformers in the same run.

Nothing here judges correctness but the hits of the trace, which are the same on every machine.
Chapter: spec/03-locks-and-eviction.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from minisgl_kernels import backends
from minisgl_ref.bench.calibration import calibrate
from minisgl_ref.bench.eviction import LEAVES, bench_eviction
from minisgl_ref.bench.kernels import bench_kernels
from minisgl_ref.bench.mooncake import TRACE_VARIABLE, bench_mooncake, trace_path
from minisgl_ref.bench.serving import Workload, bench_serving
from minisgl_ref.demo import DISTRIBUTION, INSTALL, find_model


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch and the C kernels use one thread inside: what is measured there is one core's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(report: Callable[[str], None], repeats: int = 5, num_requests: int = 64) -> dict[str, object]:
    """Run every benchmark, telling `report` one line at a time, and return the figures.

    The trace is left out, with its reason, where `TRACE_VARIABLE` names no file.

    Args:
        report:        takes each line as it is measured.
        repeats:       runs per figure; the median is reported.
        num_requests:  of serving; 0 leaves it out.

    Returns: calibration_us, mooncake (one entry per pool), eviction (one entry per number of leaves),
    kernels (one entry each), serving (one entry per engine).
    """
    calibration_us = calibrate()
    report(f"calibration loop: {calibration_us:.0f} us")
    figures: dict[str, object] = {"calibration_us": calibration_us}
    figures["mooncake"] = list(_mooncake(report, repeats))
    figures["eviction"] = list(_eviction(report, repeats))
    figures["kernels"] = list(_kernels(report))
    figures["serving"] = list(_serving(report, num_requests))
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


def _kernels(report: Callable[[str], None]) -> Iterator[dict[str, object]]:
    reason = backends.why_not("c")
    if reason is not None:
        report(f"kernels: skipped; backend c: {reason}")
        return
    for result in bench_kernels(backends.get("c")):
        report(str(result))
        yield result.as_dict()


def _serving(report: Callable[[str], None], num_requests: int) -> Iterator[dict[str, object]]:
    path = find_model()
    if num_requests == 0:
        report("serving: left out, 0 requests asked for")
    elif path is None:
        report(f"serving: skipped; it needs {DISTRIBUTION}: {INSTALL}")
    else:
        for result in bench_serving(path, Workload(num_requests)):
            report(str(result))
            yield result.as_dict()
