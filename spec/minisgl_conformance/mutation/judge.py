"""The judge of a mutant: the exported suite, on an engine with one changed module, its own checks off.

First the swarm's programs at every level that runs the module, then Hypothesis' state machines. A mutant
is killed if a rule is broken, if it cannot be imported or built, or if it runs out of a program's
processor time or of memory. The budget is a number of programs, so a verdict does not depend on how
fast the machine is; the seed is fixed.

Nothing here chooses mutants.
Guide: tests/README.md
"""

from __future__ import annotations

import resource
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minisgl_conformance import swarm
from minisgl_conformance.adapters import ours, zoo
from minisgl_conformance.fuzz import HYPOTHESIS, fuzz
from minisgl_conformance.targets import CACHE, ENGINE, LEVELS, MANAGER

MODULES = {
    "minisgl_ref.kvcache.base": LEVELS,
    "minisgl_ref.kvcache.radix_cache": LEVELS,
    "minisgl_ref.kvcache.naive_cache": LEVELS,
    "minisgl_ref.scheduler.cache": (MANAGER, ENGINE),
    "minisgl_ref.scheduler.table": (MANAGER, ENGINE),
    "minisgl_ref.scheduler.prefill": (ENGINE,),
    "minisgl_ref.scheduler.decode": (ENGINE,),
    "minisgl_ref.scheduler.scheduler": (ENGINE,),
    "minisgl_ref.core": (ENGINE,),
}
"""The tree, the managers, the scheduler and the requests it moves; each with the levels that run it."""

PROGRAMS = {CACHE: 300, MANAGER: 200, ENGINE: 300}
"""Programs of the swarm that a mutant has to survive, per level."""

EXAMPLES = {CACHE: 20, MANAGER: 20, ENGINE: 20}
"""And programs of the state machines."""

SEED = 1
SECONDS = 3.0  # of processor time per program; one takes some milliseconds
GRACE = 10  # seconds of processor time after which the process is ended: a loop inside C hears no signal
MEMORY = 2 << 30  # bytes that a worker may map, torch and all

OUT_OF_TIME, DIED = "out of time", "the process died"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    killed_by: the rule that was broken first, or what else happened; empty if nobody noticed.
    level:     where.
    seconds:   of processor time.
    """

    killed_by: str
    level: str = ""
    seconds: float = 0.0


class _TimeIsOver(KeyboardInterrupt):
    """A program took too long; a target's `except Exception` does not stop this."""


def judge(module: str, source: str) -> Verdict:
    """Run the suite on an engine that has `module` from `source`."""
    began = time.process_time()
    killed_by, level = "", ""
    try:
        with _time_limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = zoo.load_changed(module, source)
            for driver, budget in ((swarm.NAME, PROGRAMS), (HYPOTHESIS, EXAMPLES)):
                for level in MODULES[module]:
                    killed_by = _run(engine, level, driver, budget[level])
                    if killed_by:
                        return Verdict(killed_by, level, time.process_time() - began)
    except _TimeIsOver:
        killed_by = OUT_OF_TIME
    except Exception as error:
        killed_by = f"raises {type(error).__name__}: {error}"
    return Verdict(killed_by, level if killed_by else "", time.process_time() - began)


def limit_memory() -> None:
    """Let this process map no more than `MEMORY` beyond what it maps now.

    Mutates: the process, for good.
    """
    with open("/proc/self/statm", encoding="ascii") as numbers:
        mapped = int(numbers.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _run(engine: Any, level: str, driver: str, programs: int) -> str:
    summary = fuzz(
        ours.make_changed(engine, level),
        level,
        seed=SEED,
        examples=programs,
        driver=driver,
        shrink=False,
        watch=lambda *_: _start_clock(),
    )
    if summary.interrupted:
        return OUT_OF_TIME
    return summary.findings[0].rule if summary.findings else ""


@contextmanager
def _time_limit() -> Iterator[None]:
    """Stop whatever takes too long; `_start_clock` sets the clock back."""

    def stop(*_: object) -> None:
        raise _TimeIsOver

    former = signal.signal(signal.SIGPROF, stop)
    limits = resource.getrlimit(resource.RLIMIT_CPU)
    try:
        _start_clock()
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
        resource.setrlimit(resource.RLIMIT_CPU, limits)


def _start_clock() -> None:
    signal.setitimer(signal.ITIMER_PROF, SECONDS, SECONDS)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + GRACE, hard))
