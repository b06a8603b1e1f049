"""The command line: `python -m minisgl_conformance.mutation`, which `make mutation` runs.

Exit code 0: the score is reached and every reason holds; 1: it is not, or one does not.
Nothing here decides anything; it prints.
Guide: tests/README.md
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from queue import SimpleQueue

from minisgl_conformance.fuzz import start_workers
from minisgl_conformance.mutation.judge import DIED, MODULES, Verdict, judge, limit_memory
from minisgl_conformance.mutation.mutants import Mutant, mutants
from minisgl_conformance.mutation.survivors import Score, draft, load_reasons


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutants and print the score; return the exit code."""
    options = _parser().parse_args(arguments)
    began = time.perf_counter()
    chosen = list(mutants(options.modules or list(MODULES), options.seed, options.sample or None))
    verdicts: dict[Mutant, Verdict] = {}
    for mutant, verdict in judge_all(chosen, options.workers):
        verdicts[mutant] = verdict
        if options.verbose:
            _say(f"{verdict.seconds:6.2f} s  {verdict.killed_by or 'SURVIVED'}  {mutant.key}")
    score = Score(verdicts, load_reasons())
    how = Counter(verdict.killed_by.partition(":")[0] for verdict in verdicts.values() if verdict.killed_by)
    _say("killed by: " + ", ".join(f"{name} {count}" for name, count in how.most_common()))
    _say(*score.lines())
    spent = sum(verdict.seconds for verdict in verdicts.values())
    _say(f"{time.perf_counter() - began:.0f} s, {spent:.0f} s of processor time in {options.workers} workers")
    if options.draft:
        _say(draft(score.of("")))
    return 0 if score.is_good else 1


def judge_all(chosen: Iterable[Mutant], workers: int) -> Iterator[tuple[Mutant, Verdict]]:
    """Judge mutants in worker processes, each of which is started again when a mutant ends it."""
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for _ in range(workers):
        idle.put(_Worker())

    def judge_one(mutant: Mutant) -> tuple[Mutant, Verdict]:
        one = idle.get()
        try:
            return mutant, one.judge(mutant)
        finally:
            idle.put(one)

    with ThreadPoolExecutor(workers) as threads:
        yield from threads.map(judge_one, chosen)
    for _ in range(workers):
        idle.get().pool.shutdown()


class _Worker:
    """A process that judges one mutant after the other."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.pool = start_workers(1)
        self.pool.submit(limit_memory)

    def judge(self, mutant: Mutant) -> Verdict:
        try:
            return self.pool.submit(judge, mutant.module, mutant.source).result()
        except BrokenProcessPool:
            self.pool.shutdown()
            self.start()
            return Verdict(DIED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minisgl_conformance.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="only these modules")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants; all if left out")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="print each verdict")
    parser.add_argument("--draft", action="store_true", help="print entries for survivors without a reason")
    return parser


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
