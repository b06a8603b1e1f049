"""A yardstick: how long this machine takes, now, for a fixed loop of plain Python.

The loop does what a radix tree does: it slices bytes, looks them up in a dict, and walks a chain of
small objects. Figures of two machines are compared after division by it.

This file never measures the engine.
Chapter: spec/03-locks-and-eviction.md
"""

from __future__ import annotations

from statistics import median
from time import process_time

ROUNDS = 1000
SLICE = 64  # bytes


def calibrate(repeats: int = 5) -> float:
    """Return the median time of the loop in microseconds."""
    return median(_timed_loop() for _ in range(repeats)) * 1e6


def _timed_loop() -> float:
    text = bytes(range(256)) * SLICE
    table = {text[start : start + SLICE]: start for start in range(256)}
    begin = process_time()
    found = 0
    for turn in range(ROUNDS):
        start = turn % 192
        for offset in range(0, 8 * SLICE, SLICE):
            found += table.get(text[start + offset : start + offset + SLICE], 0)
    elapsed = process_time() - begin
    if not found:
        raise RuntimeError(f"the calibration loop found {found} entries")
    return elapsed
