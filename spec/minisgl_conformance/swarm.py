"""The swarm driver: plain seeded random programs, for volume.

Each program first draws its habits: which verbs are frequent and which are left out, which prompts it
makes, how late the streams are; then a configuration; then operations, fed to a runner as they are
drawn. Programs of unlike habits reach corners that one average program never reaches.

Source of the idea: Groce et al., "Swarm Testing" (ISSTA 2012).
A program depends on its seed and its number alone, so any of them can be run again by itself.

Nothing here judges.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any

from minisgl_conformance import programs, targets
from minisgl_conformance.cache_runner import CacheRunner
from minisgl_conformance.engine_runner import EngineRunner
from minisgl_conformance.manager_runner import ManagerRunner
from minisgl_conformance.players import CachePlayer, EnginePlayer, ManagerPlayer
from minisgl_conformance.programs import PromptDraw
from minisgl_conformance.runner import Result, Runner, make_runner
from minisgl_conformance.targets import MakeTarget
from minisgl_conformance.variants import ALL_SHARE
from minisgl_spec.invariants import JUDGES
from minisgl_spec.trace import Json

NAME = "swarm"

WEIGHTS = (0, 1, 1, 2, 4, 8)
"""How frequent a verb may be; one in six is left out of a program."""

NUM_VERBS = {targets.CACHE: (6, 60), targets.MANAGER: (6, 50), targets.ENGINE: (6, 40)}
"""Verbs of a program, at least and at most."""

COMPARED = 4
"""One program in so many runs again in another configuration: the model judges every token anyway."""

Verb = Callable[[], object]


class _Found(Exception):
    """The operation just run broke a rule; the runner has the finding."""


def run_program_of(
    make_target: MakeTarget,
    level: str,
    seed: int,
    number: int,
    *,
    fixed: Mapping[str, Any] | None = None,
    judges: Collection[str] = JUDGES,
    streams: Sequence[str] = ("inline",),
) -> Result:
    """Draw and run program `number` of a seed, up to its first finding."""
    draw = Draw(Random(seed * 1_000_003 + number))
    config = _LEVELS[level][0](draw, dict(fixed or {}), streams)
    origin = {"driver": NAME, "seed": seed, "number": number}
    runner = make_runner(level, make_target, config, judges, origin)
    least, most = NUM_VERBS[level]
    try:
        verbs = _LEVELS[level][1](draw, runner)
        for _ in range(least + draw.below(most - least)):
            draw.pick(verbs)()
    except _Found:
        return runner.result()
    runner.finish()
    return runner.result()


class Draw:
    """Small random numbers, drawn fast."""

    def __init__(self, source: Random) -> None:
        self.random = source.random
        number = self.below(ALL_SHARE)
        self.is_compared, self.compares_all = number < ALL_SHARE // COMPARED, number == 0

    def below(self, limit: int) -> int:
        """Return a whole number in [0, limit)."""
        return int(self.random() * limit)

    def pick(self, values: Sequence[Any]) -> Any:
        """Return one of the values."""
        return values[int(self.random() * len(values))]

    def some(self, count: int, limit: int) -> list[int]:
        """Return one to `count` numbers below `limit`, a habit to pick from."""
        return [self.below(limit) for _ in range(1 + self.below(count))]


class _Prompts:
    """The habit of making prompts: which kinds, from how far back, how long, of which tokens."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.kinds = [programs.FRESH, *draw.some(6, 6)]
        self.which = 1 + draw.below(8)
        self.size = draw.pick((4, 8, 16, 36))
        self.bits = draw.some(6, 64)

    def __call__(self) -> PromptDraw:
        draw = self.draw
        return draw.pick(self.kinds), draw.below(self.which), draw.below(self.size), draw.pick(self.bits)


class _Lateness:
    """The habit of the streams: idle, prompt, one of them ahead, the same every time, or anything."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.style = draw.below(5)
        self.fixed = [draw.below(6) for _ in range(8)]

    def __call__(self) -> list[int]:
        draw = self.draw
        if self.style == 0:
            return []
        if self.style == 1:
            return [1] * 8
        if self.style == 2:
            return self.fixed
        if self.style == 3:
            return [2 + draw.below(4) for _ in range(draw.below(9))]
        return [draw.below(6) for _ in range(draw.below(9))]


def _cache_config(draw: Draw, fixed: Mapping[str, Any], streams: Sequence[str]) -> Json:
    return programs.make_cache_config(
        draw.pick(programs.PAGE_SIZES), 3 + draw.below(10), draw.below(2 * programs.NAIVE_SHARE), fixed
    )


def _engine_config(draw: Draw, fixed: Mapping[str, Any], streams: Sequence[str]) -> Json:
    sizes = (
        draw.pick(programs.PAGE_SIZES),
        3 + draw.below(10),
        1 + draw.below(4),
        draw.pick(programs.MAX_SEQ_LENS),
        draw.pick(programs.TOKEN_BUDGETS),
    )
    return programs.make_engine_config(
        sizes,
        draw.below(2 * programs.NAIVE_SHARE),
        has_eos=draw.below(2) == 0,
        overlap=draw.below(2) == 0,
        streams=draw.pick(streams),
        compare=_compare(draw, fixed),
        fixed=fixed,
    )


def _compare(draw: Draw, fixed: Mapping[str, Any]) -> str:
    if not draw.is_compared:
        return ""
    one: str = draw.pick(programs.free_variants(fixed))
    return programs.all_variants(fixed) if draw.compares_all else one


def _cache_verbs(draw: Draw, runner: Runner) -> list[Verb]:
    """Return the verbs of a cache program, each as often as its weight."""
    assert isinstance(runner, CacheRunner)
    player = CachePlayer(runner, _do(runner))
    prompt, below = _Prompts(draw), draw.below
    return _weighted(
        draw,
        [
            lambda: player.serve(prompt()),
            lambda: player.insert(prompt()),
            lambda: player.insert_and_lock(prompt()),
            lambda: player.match(prompt()),
            lambda: player.lock(below(8)),
            lambda: player.unlock(below(8)),
            lambda: player.unlock_any(below(8)),
            lambda: player.evict(below(25) - 4),
            lambda: player.evict_a_share(below(4)),
            lambda: player.insert_too_few(prompt(), 1 + below(3)),
            player.unlock_all,
            lambda: player.reset(below(4)),
        ],
    )


def _manager_config(draw: Draw, fixed: Mapping[str, Any], streams: Sequence[str]) -> Json:
    sizes = (
        draw.pick(programs.PAGE_SIZES),
        3 + draw.below(10),
        1 + draw.below(4),
        draw.pick(programs.MAX_SEQ_LENS),
    )
    return programs.make_manager_config(sizes, draw.below(2 * programs.NAIVE_SHARE), fixed)


def _manager_verbs(draw: Draw, runner: Runner) -> list[Verb]:
    """Return the verbs of a manager program, each as often as its weight."""
    assert isinstance(runner, ManagerRunner)
    player = ManagerPlayer(runner, _do(runner))
    prompt, below = _Prompts(draw), draw.below
    return _weighted(
        draw,
        [
            lambda: player.serve(prompt(), 1 + below(40)),
            lambda: player.start(prompt()),
            lambda: player.serve_twins(prompt()),
            lambda: player.extend(below(4), 1 + below(40)),
            lambda: player.extend(below(4), 1 + below(3)),
            lambda: player.end("commit", below(4)),
            lambda: player.end("finish", below(4)),
            lambda: player.end("abort", below(4)),
            lambda: player.mistake(below(9), prompt()),
        ],
    )


def _engine_verbs(draw: Draw, runner: Runner) -> list[Verb]:
    """Return the verbs of an engine program, each as often as its weight; half of all is steps."""
    assert isinstance(runner, EngineRunner)
    player = EnginePlayer(runner, _do(runner))
    prompt, progress, below = _Prompts(draw), _Lateness(draw), draw.below
    longest, crowd = 1 + below(len(programs.MAX_TOKENS)), 1 + below(8)

    def max_tokens() -> int:
        return programs.MAX_TOKENS[below(longest)]

    def steps() -> None:
        player.steps(1 + below(4), progress())

    def submit_badly() -> None:
        for _ in range(3):  # each of many mistakes has to come up, and none takes long
            player.submit_badly(prompt(), below(programs.NUM_BAD_SUBMISSIONS))

    def unless_crowded(submit: Verb) -> Verb:
        return lambda: (steps if runner.num_live() >= crowd else submit)()

    verbs = _weighted(
        draw,
        [
            unless_crowded(lambda: player.submit(prompt(), max_tokens(), below(programs.NUM_OPTIONS))),
            unless_crowded(lambda: player.submit_twins(prompt(), max_tokens())),
            unless_crowded(lambda: player.submit_and_abort(prompt(), below(4), progress())),
            lambda: player.abort(below(8)),
            lambda: player.abort_running(below(4)),
        ],
    )
    rare = [
        lambda: player.submit_under_an_old_uid(prompt(), below(5)),
        submit_badly,
        lambda: player.reset(2 + below(2)),
    ]
    return [*verbs, *(verb for verb in rare if below(3) == 0), *[steps] * (1 + len(verbs))]


_LEVELS: dict[
    str,
    tuple[Callable[[Draw, Mapping[str, Any], Sequence[str]], Json], Callable[[Draw, Runner], list[Verb]]],
] = {
    targets.CACHE: (_cache_config, _cache_verbs),
    targets.MANAGER: (_manager_config, _manager_verbs),
    targets.ENGINE: (_engine_config, _engine_verbs),
}


def _weighted(draw: Draw, verbs: Sequence[Verb]) -> list[Verb]:
    """List each verb as often as the weight it draws; the first, which brings work, is never left out."""
    return [verbs[0], *(verb for verb in verbs for _ in range(draw.pick(WEIGHTS)))]


def _do(runner: Runner) -> Callable[[Json], None]:
    def do(op: Json) -> None:
        if runner.apply(op) is not None:
            raise _Found

    return do
