"""Plays a transcript: a text file of commands, each followed by `----` and what the oracle answers.

A transcript begins with the line that builds its stage:

    cache page_size=2 num_pages=4                       a radix tree and the pages behind it
    engine page_size=2 num_pages=8 overlap=1 ...        a scheduler, whose model counts: 1 2 3 makes 4
    numbers vocab_size=16                               sampling and the digest

Lines that begin with # and empty lines stay as they are. An answer ends with an empty line. Sizes, and
`free` in a drawing, are in slots. Every invariant is checked after every command.
Guide: tests/README.md
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from minisgl_spec import invariants
from minisgl_spec.draw import draw_cache, draw_engine, draw_ranges
from minisgl_spec.errors import ContractError
from minisgl_spec.messages import Sampling
from minisgl_spec.numerics import digest_next_token, uniform
from minisgl_spec.page_pool import PagePool
from minisgl_spec.radix_tree import Handle, RadixTree
from minisgl_spec.requests import Config, Submission
from minisgl_spec.scheduler import Scheduler
from minisgl_spec.shadow import digest_codes
from minisgl_spec.trace import Json
from minisgl_spec.units import div_ceil, pages_to_slots, slots_to_pages

RULE = "----"
OLD_ANSWER = re.compile(rf"^{RULE}\n(?:.+\n)*\n?", re.MULTILINE)
TEXT: dict[str, Callable[[str], object]] = {
    "cache": str,
    "overlap": lambda text: bool(int(text)),
    "eos_ids": lambda text: (int(text),),
}
"""Options that are no plain number, and how each is read."""


@dataclass(frozen=True)
class Arguments:
    """What follows a command: numbers in order, and options by name."""

    numbers: tuple[int, ...]
    options: dict[str, str]

    @classmethod
    def read(cls, words: list[str]) -> Arguments:
        """Read `1 2 3 max_tokens=2`."""
        options = dict(word.split("=") for word in words if "=" in word)
        return cls(tuple(int(word) for word in words if "=" not in word), options)


class Cache:
    """A radix tree and the pages behind it, for commands that name handles by number."""

    def __init__(self, arguments: Arguments) -> None:
        options = {name: int(value) for name, value in arguments.options.items()}
        self.tree = RadixTree(options["page_size"])
        self.pool = PagePool(options["num_pages"])
        self.handles: list[Handle] = []

    def match(self, arguments: Arguments) -> str:
        """match IDS"""
        handle = self.tree.match_prefix(arguments.numbers)
        self.handles.append(handle)
        return self._name(handle)

    def insert(self, arguments: Arguments) -> str:
        """insert IDS [handle=N]: the handle's slots, then fresh pages; gives back what is unused."""
        head = self.handles[int(arguments.options["handle"])].slots() if arguments.options else ()
        ids, page_size = arguments.numbers, self.tree.page_size
        fresh = self.pool.take(div_ceil(len(ids) - len(head), page_size))
        slots = head + pages_to_slots(fresh, page_size)
        result = self.tree.insert_prefix(ids, slots[: len(ids)])
        self.handles.append(result.handle)
        unused = slots[len(head) : result.prefix_len] + slots[result.handle.prefix_len :]
        self.pool.give(slots_to_pages(unused, page_size))
        own = f"prefix_len={result.prefix_len}; own slots {draw_ranges(slots[len(head) :])}"
        return f"{self._name(result.handle)}\n{own}, given back {draw_ranges(unused)}"

    def lock(self, arguments: Arguments) -> str:
        """lock HANDLE"""
        self.tree.lock(self.handles[arguments.numbers[0]])
        return ""

    def unlock(self, arguments: Arguments) -> str:
        """unlock HANDLE"""
        self.tree.unlock(self.handles[arguments.numbers[0]])
        return ""

    def evict(self, arguments: Arguments) -> str:
        """evict SIZE"""
        slots = self.tree.evict(arguments.numbers[0])
        self.pool.give(slots_to_pages(slots, self.tree.page_size))
        return f"slots {draw_ranges(slots)}"

    def reset(self, arguments: Arguments) -> str:
        """reset"""
        self.tree.reset()
        self.pool.free_pages = tuple(range(self.pool.num_pages))
        return ""

    def picture(self) -> str:
        """What is shown after every command."""
        invariants.check(self.tree.view())
        return draw_cache(self.tree.view(), len(self.pool.free_pages) * self.tree.page_size)

    def _name(self, handle: Handle) -> str:
        number, slots = self.handles.index(handle), draw_ranges(handle.slots())
        return f"handle {number}: {handle.prefix_len} tokens, slots {slots}"


class Engine:
    """A scheduler whose model counts: the next token is the last one plus one."""

    def __init__(self, arguments: Arguments) -> None:
        options = {name: TEXT.get(name, int)(value) for name, value in arguments.options.items()}
        config = Config.from_json({"vocab_size": 100, **options})
        self.scheduler = Scheduler(config, lambda ids, *_: (ids[-1] + 1) % config.vocab_size)

    def submit(self, arguments: Arguments) -> str:
        """submit UID IDS max_tokens=N"""
        uid, *ids = arguments.numbers
        refusal = self.scheduler.submit(Submission(uid, tuple(ids), int(arguments.options["max_tokens"])))
        return "accepted" if refusal is None else f"refused: {refusal}"

    def abort(self, arguments: Arguments) -> str:
        """abort UID"""
        refusal = self.scheduler.abort(arguments.numbers[0])
        return "accepted" if refusal is None else f"refused: {refusal}"

    def step(self, arguments: Arguments) -> str:
        """step"""
        self.scheduler.step()
        return ""

    def reset(self, arguments: Arguments) -> str:
        """reset"""
        self.scheduler.reset()
        return ""

    def draw(self, arguments: Arguments) -> str:
        """draw"""
        self.scheduler.inner = []
        return draw_engine(self.scheduler.view())

    def picture(self) -> str:
        """What is shown after every command: its inner events."""
        invariants.check(self.scheduler.view())
        return "\n".join(INNER[event["do"]](event) for event in self.scheduler.inner)


class Numbers:
    """Sampling and the digest model."""

    def __init__(self, arguments: Arguments) -> None:
        self.vocab_size = int(arguments.options["vocab_size"])

    def digest(self, arguments: Arguments) -> str:
        """digest IDS"""
        ids = arguments.numbers
        token = digest_next_token(ids, Sampling(), 0, self.vocab_size)
        return f"codes {' '.join(map(str, digest_codes(ids)))}; next token {token}"

    def uniform(self, arguments: Arguments) -> str:
        """uniform SEED COUNT"""
        seed, count = arguments.numbers
        return " ".join(f"{uniform(seed, output_idx):.6f}" for output_idx in range(count))

    def picture(self) -> str:
        """There is no state to show."""
        return ""


STAGES: dict[str, type[Cache] | type[Engine] | type[Numbers]] = {
    "cache": Cache,
    "engine": Engine,
    "numbers": Numbers,
}


def _launch(event: Json) -> str:
    entries = [
        f"{uid} at {cached_len}:{device_len}{'' if sampled else ' (chunk)'}"
        for uid, cached_len, device_len, sampled in event["requests"]
    ]
    return f"launch batch {event['batch']}, {event['phase']}: {', '.join(entries)}"


def _reply(event: Json) -> str:
    end = f" finish_reason={event['finish_reason']}" if event["finish_reason"] else ""
    return f"reply {event['uid']} token={event['token']}{end}"


def _lengths(event: Json) -> str:
    return f"insert_len={event['insert_len']} prefix_len={event['prefix_len']}"


INNER: dict[str, Callable[[Json], str]] = {
    "admit": lambda e: (
        f"admit {e['uid']} row={e['row']} cached_len={e['cached_len']} pages={draw_ranges(e['pages'])}"
    ),
    "refuse": lambda e: f"refuse {e['uid']} {e['why']} need={e['need']} available={e['available']}",
    "evict": lambda e: f"evict pages={draw_ranges(e['pages'])}",
    "take": lambda e: f"take {e['uid']} pages={draw_ranges(e['pages'])}",
    "launch": _launch,
    "process": lambda e: f"process batch {e['batch']}",
    "insert": lambda e: f"insert {e['uid']} {_lengths(e)} duplicates={draw_ranges(e['duplicates'])}",
    "release": lambda e: (
        f"release {e['uid']} row={e['row']} {_lengths(e)} given_up={draw_ranges(e['given_up'])}"
    ),
    "reply": _reply,
}


def play(text: str) -> str:
    """Return a transcript with the answers its commands get now."""
    stage: Cache | Engine | Numbers | None = None
    played: list[str] = []
    for line in OLD_ANSWER.sub("", text).splitlines():
        played.append(line)
        if not line or line.startswith("#"):
            continue
        name, *words = line.split()
        arguments = Arguments.read(words)
        if stage is None:
            stage, answer = STAGES[name](arguments), ""
        else:
            answer = _answer(getattr(stage, name), arguments)
        played += [RULE, *(part for part in (answer, stage.picture()) if part), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(played)).rstrip("\n") + "\n"


def _answer(command: Callable[[Arguments], str], arguments: Arguments) -> str:
    try:
        return command(arguments)
    except ContractError as error:
        return f"ContractError {error}"
