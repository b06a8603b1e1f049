"""Mutated traces: what shows that the validation is not vacuous.

A change of any field that the engine answers with, in any kind of event, must be rejected; so must
an event that is lost, doubled or out of order. A change of an input may stay valid: `INPUT_CHANGES`
says which, and those must be accepted.

Nothing here runs TLC.
Chapter: tla/README.md
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from minisgl_conformance.tla.traces import CODES, KINDS, Event, Trace

INPUTS = {("submit", "uid"), ("submit", "ids"), ("submit", "max_tokens"), ("abort", "uid")}
"""Fields of an answer that repeat an input: a change of them alone is a change of the program."""


@dataclass(frozen=True)
class Mutant:
    """A changed trace: what was changed, and whether the model must accept it."""

    name: str
    trace: Trace
    is_valid: bool


def mutants(traces: Sequence[Trace], per_kind: int, seed: int = 1) -> list[Mutant]:
    """Return changed traces: `per_kind` for every field of every kind of event, and every other change."""
    rng = random.Random(seed)
    places = _places(traces)
    made: list[Mutant] = []
    for kind, (name, fields) in KINDS.items():
        for field_idx, field in enumerate(fields):
            if (name, field) in INPUTS:
                continue
            chosen = rng.sample(places[kind], min(per_kind, len(places[kind])))
            made += (_answer_mutant(rng, traces[idx], at, field_idx, f"{name}.{field}") for idx, at in chosen)
    for kind in (kind for kind in KINDS if kind >= CODES["begin_step"]):
        chosen = rng.sample(places[kind], min(per_kind, len(places[kind])))
        for change in (_dropped, _doubled, _swapped):
            made += (mutant for idx, at in chosen if (mutant := change(traces[idx], at)) is not None)
    for name, input_change in INPUT_CHANGES.items():
        changed = (input_change(trace) for trace in traces)
        valid = [Mutant(name, trace, True) for trace in changed if trace is not None]
        made += valid[:per_kind]
    return made


def _places(traces: Sequence[Trace]) -> dict[int, list[tuple[int, int]]]:
    """Return where events of each kind are, the earliest of each trace first."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for idx, trace in enumerate(traces):
        for at, event in enumerate(trace.events[:MAX_PREFIX]):
            places[event[0]].append((idx, at))
    return places


MAX_PREFIX = 80  # events before a change, so that many short traces fit into one run


def _with_events(trace: Trace, events: Sequence[Event]) -> Trace:
    return Trace((*trace.header[:-1], len(events)), tuple(events))


# -- what the engine answers -------------------------------------------------------------------


def _answer_mutant(rng: random.Random, trace: Trace, at: int, field_idx: int, name: str) -> Mutant:
    event = trace.events[at]
    place = field_idx + 1
    if event[0] == CODES["submit"]:
        place = field_idx + 5 if field_idx else 1
    changed = (*event[:place], _changed(rng, event[place]), *event[place + 1 :])
    return Mutant(name, _with_events(trace, [*trace.events[:at], changed]), False)


def _changed(rng: random.Random, value: object) -> object:
    """Return another value of the same shape."""
    if isinstance(value, tuple):
        choices: list[tuple[object, ...]] = [(*value, value[-1] if value else 0)]
        if value:
            spot = rng.randrange(len(value))
            choices += [value[:-1], (*value[:spot], _changed(rng, value[spot]), *value[spot + 1 :])]
        if value[::-1] != value:
            choices.append(value[::-1])
        return rng.choice(choices)
    assert isinstance(value, int)
    return value + rng.choice((1, 1, -1, 2))


# -- events that are lost, doubled or out of order ---------------------------------------------


def _dropped(trace: Trace, at: int) -> Mutant | None:
    events = trace.events
    if at + 1 >= len(events) or events[at + 1] == events[at]:
        return None
    return Mutant(
        f"{_name(events[at])} lost", _with_events(trace, [*events[:at], *events[at + 1 : at + 2]]), False
    )


def _doubled(trace: Trace, at: int) -> Mutant:
    events = trace.events
    return Mutant(f"{_name(events[at])} doubled", _with_events(trace, [*events[: at + 1], events[at]]), False)


def _swapped(trace: Trace, at: int) -> Mutant | None:
    events = trace.events
    if at + 1 >= len(events) or events[at + 1][0] < CODES["begin_step"] or events[at + 1] == events[at]:
        return None
    changed = _with_events(trace, [*events[:at], events[at + 1], events[at]])
    return Mutant(f"{_name(events[at])} after its successor", changed, False)


def _name(event: Event) -> str:
    return KINDS[event[0]][0]


# -- inputs that may change --------------------------------------------------------------------


def _each_submit(trace: Trace, change: Callable[[Event], Event | None]) -> Trace | None:
    """Apply a change to the first accepted or refused submission that takes it."""
    for at, event in enumerate(trace.events):
        if event[0] == CODES["submit"]:
            changed = change(event)
            if changed is not None:
                return _with_events(trace, [*trace.events[:at], changed, *trace.events[at + 1 :]])
    return None


def more_tokens_than_fit(trace: Trace) -> Trace | None:
    """max_tokens is clamped already: more changes nothing."""
    max_seq_len = trace.header[3]

    def change(event: Event) -> Event | None:
        is_clamped = event[6] == 1 and event[3] > max_seq_len - len(event[2])
        return (*event[:3], event[3] + 7, *event[4:]) if is_clamped else None

    return _each_submit(trace, change)


def a_stop_token_that_never_comes(trace: Trace) -> Trace | None:
    """A stop token outside the vocabulary is never generated."""

    def change(event: Event) -> Event | None:
        return (*event[:4], (*event[4], trace.header[8] + 1), *event[5:]) if event[6] == 1 else None

    return _each_submit(trace, change)


def a_later_fault(trace: Trace) -> Trace | None:
    """What is refused for one reason may have a second, checked later."""

    def change(event: Event) -> Event | None:
        is_earlier = 0 < event[7] < 5
        return (*event[:5], 6, *event[6:]) if is_earlier else None

    return _each_submit(trace, change)


def the_token_of_a_request_that_has_ended(trace: Trace) -> Trace | None:
    """The token that nobody receives may be any."""
    replied = {
        (batch, event[1])
        for batch, event in _after_process(trace.events)
        if event[0] == CODES["reply"] and event[2] >= 0
    }
    for at, event in enumerate(trace.events):
        if event[0] != CODES["launch"]:
            continue
        for idx, request in enumerate(event[3]):
            is_processed = any(e[0] == CODES["process"] and e[1] == event[1] for e in trace.events[at:])
            if request[3] == 1 and is_processed and (event[1], request[0]) not in replied:
                tokens = (*event[4][:idx], event[4][idx] + 1, *event[4][idx + 1 :])
                return _with_events(
                    trace, [*trace.events[:at], (*event[:4], tokens), *trace.events[at + 1 :]]
                )
    return None


def another_uid(trace: Trace) -> Trace | None:
    """A uid is a name: the same run under other names."""
    shift = 1000
    renamed = [_renamed(event, shift) for event in trace.events]
    return _with_events(trace, renamed)


def a_refused_call_less(trace: Trace) -> Trace | None:
    """What is refused changes nothing, so it may be lost."""
    accepted_at = {CODES["submit"]: 6, CODES["abort"]: 2, CODES["reset"]: 1}
    for at, event in enumerate(trace.events):
        if event[0] in accepted_at and event[accepted_at[event[0]]] == 0:
            return _with_events(trace, [*trace.events[:at], *trace.events[at + 1 :]])
    return None


INPUT_CHANGES: dict[str, Callable[[Trace], Trace | None]] = {
    change.__name__: change
    for change in (
        more_tokens_than_fit,
        a_stop_token_that_never_comes,
        a_later_fault,
        the_token_of_a_request_that_has_ended,
        another_uid,
        a_refused_call_less,
    )
}
"""The changes of inputs that leave a trace valid; every other change of an input is a different run."""


def _after_process(events: Sequence[Event]) -> Iterator[tuple[int, Event]]:
    """Yield every event with the number of the batch processed last."""
    batch = 0
    for event in events:
        if event[0] == CODES["process"]:
            batch = event[1]
        yield batch, event


def _renamed(event: Event, shift: int) -> Event:
    name, fields = KINDS[event[0]]
    if name == "submit":
        value = event[8] + shift if event[7] == 1 else event[8]
        return (event[0], event[1] + shift, *event[2:8], value, *event[9:])
    if name == "launch":
        requests = tuple((request[0] + shift, *request[1:]) for request in event[3])
        return (*event[:3], requests, *event[4:])
    return (event[0], event[1] + shift, *event[2:]) if fields and fields[0] == "uid" else event
