"""Logs as TLA+: every event a tuple of integers, validated by TLC against `TraceScheduler.tla`.

A batch of traces is one generated module. TLC prints a witness for each trace that it followed to
the end; accepted is what has a witness, whatever the exit code says. For a rejected trace it is run
twice more: how far the model follows, and what the model answers there.

Nothing here runs an engine.
Chapter: tla/README.md
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minisgl_conformance.tla import tlc
from minisgl_spec.requests import Config
from minisgl_spec.trace import Json, Log, Program

CHUNK_LEN = 1000  # events

Event = tuple[Any, ...]
"""A tuple of integers and of tuples, as `event` in Scheduler.tla."""

KINDS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("submit", ("uid", "accepted", "reason", "value", "limit", "ids", "max_tokens")),
    2: ("abort", ("uid", "accepted")),
    3: ("reset", ("accepted",)),
    4: ("begin_step", ()),
    5: ("end_step", ("free_pages", "evictable_size", "protected_size", "num_waiting", "num_running")),
    6: ("admit", ("uid", "row", "cached_len", "pages")),
    7: ("refuse", ("uid", "why", "need", "available")),
    8: ("evict", ("pages",)),
    9: ("take", ("uid", "pages")),
    10: ("launch", ("batch", "phase", "requests")),
    11: ("process", ("batch",)),
    12: ("insert", ("uid", "insert_len", "prefix_len", "duplicates")),
    13: ("release", ("uid", "row", "insert_len", "prefix_len", "given_up")),
    14: ("reply", ("uid", "token", "finish_reason", "cached_len")),
}
"""Every kind of event: its name, and the fields of its answer after the kind."""

CODES = {name: code for code, (name, _) in KINDS.items()}

REASONS = (
    "duplicate_uid", "empty_prompt", "token_out_of_range", "max_tokens_not_positive", "bad_temperature",
    "bad_top_k", "bad_top_p", "prompt_too_long", "larger_than_pool",
)  # fmt: skip
SAMPLING_FAULTS = ("bad_temperature", "bad_top_k", "bad_top_p")
WHY = ("no_row", "no_room", "no_room_after_lock")
FINISH_REASONS = ("stop", "length", "abort")
PHASES = ("prefill", "decode")

GUARDS = (
    "duplicate_uid", "empty_prompt", "token_out_of_range", "max_tokens_not_positive", "bad_temperature",
    "bad_top_k", "bad_top_p", "prompt_too_long", "larger_than_pool", "max_tokens is clamped",
    "abort of an unknown uid", "abort while waiting", "abort in flight", "abort in prefill",
    "reset while locked", "replies of aborts first", "an unfinished chunk goes first", "no_row", "no_room",
    "no_room_after_lock", "a prefix is found", "a lock changes counts", "a prompt is chunked",
    "pages are promised already", "all but the last token", "a batch of several takes pages",
    "evict beside locked nodes", "evict more than asked", "decode, not prefill", "a chunk is not sampled",
    "one batch still in flight", "a request waits for its last token", "retired pages come back",
    "duplicates at insertion", "duplicates are retired", "duplicates at release", "pages given up at release",
    "released after its reply", "retired pages are awaited", "stop", "length", "marked, for it is in flight",
    "a uid is taken until its reply is delivered",
)  # fmt: skip
"""What the numbers of TraceScheduler's `outcome` mean, from 1."""


@dataclass(frozen=True)
class Trace:
    """A configuration and its events, as tuples."""

    header: tuple[int, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Verdict:
    """What TLC said of a batch: the traces it accepted, and the guard outcomes it saw."""

    num_traces: int
    accepted: frozenset[int]
    outcomes: frozenset[int]
    outcome: tlc.Outcome

    @property
    def rejected(self) -> tuple[int, ...]:
        """The traces without a witness, from 0."""
        return tuple(idx for idx in range(self.num_traces) if idx not in self.accepted)


@dataclass(frozen=True)
class Rejection:
    """Where a trace leaves the model: the event, what was enabled, and the fields that differ."""

    event_idx: int
    event: Event
    answers: tuple[Event, ...]  # of the model there

    def __str__(self) -> str:
        name = KINDS[self.event[0]][0]
        lines = [
            f"event {self.event_idx}: {describe(self.event)}",
            f"the model answers {len(self.answers)} ways:",
        ]
        lines += [f"  {describe(answer)}" for answer in self.answers[:8]]
        same = [answer for answer in self.answers if answer[0] == self.event[0]]
        if not same:
            enabled = ", ".join(dict.fromkeys(KINDS[answer[0]][0] for answer in self.answers)) or "nothing"
            lines.append(f"differs: {name} is not enabled; enabled: {enabled}")
        for field, theirs, ours in differences(self.event, same[0]) if same else ():
            lines.append(f"differs: {field}: the log has {theirs}, the model {ours}")
        return "\n".join(lines[:15])


def answer_of(event: Event) -> Event:
    """Return the part of an event that the engine answers with, in the model's form."""
    if event[0] == CODES["submit"]:
        return (event[0], event[1], *event[6:], *event[2:4])
    return event[:4] if event[0] == CODES["launch"] else event


def describe(event: Event) -> str:
    """Return an event in words."""
    name, fields = KINDS[event[0]]
    answer = answer_of(event) if len(event) != len(fields) + 1 else event
    return " ".join([name, *(f"{field}={value}" for field, value in zip(fields, answer[1:], strict=True))])


def differences(event: Event, answer: Event) -> list[tuple[str, Any, Any]]:
    """Return the fields in which an event of the log and an answer of the model differ."""
    fields = KINDS[event[0]][1]
    pairs = zip(fields, answer_of(event)[1:], answer[1:], strict=True)
    return [(field, theirs, ours) for field, theirs, ours in pairs if theirs != ours]


# -- from a log to a trace ---------------------------------------------------------------------


def trace_of(program: Program, log: Log) -> Trace:
    """Turn a program and its log into a trace; the log may end before the program does."""
    config = Config.from_json(log.config)
    events: list[Event] = []
    for op, event in zip(program.ops, log.events, strict=False):
        if event["event"] == "submit":
            events.append(_submit_event(op, event, config))
        elif event["event"] == "reset":
            events.append((CODES["reset"], int(event["accepted"])))
        elif event["event"] == "abort":
            events.append((CODES["abort"], event["uid"], int(event["accepted"])))
            events += (_inner_event(inner) for inner in event["inner"])
        else:
            sizes = tuple(event[name] for name in KINDS[CODES["end_step"]][1])
            inner = (_inner_event(one) for one in event["inner"])
            events += [(CODES["begin_step"],), *inner, (CODES["end_step"], *sizes)]
    header = (
        config.page_size, config.num_pages, config.num_rows, config.max_seq_len, config.row_width,
        config.token_budget, int(config.cache == "naive"), int(config.overlap), config.vocab_size,
        len(events),
    )  # fmt: skip
    return Trace(header, tuple(_with_tokens(events)))


def _submit_event(op: Json, event: Json, config: Config) -> Event:
    stops = () if op.get("ignore_eos") else config.eos_ids
    reason = event.get("reason")
    is_sampling = reason in SAMPLING_FAULTS
    is_duplicate = reason == "duplicate_uid"
    return (
        CODES["submit"],
        op["uid"],
        tuple(op["ids"]),
        op["max_tokens"],
        (*stops, *op.get("stop_ids", ())),
        _sampling_fault(op),
        int(event["accepted"]),
        0 if reason is None else 1 + REASONS.index(reason),
        0 if is_sampling else event.get("value", 0),
        0 if is_sampling or is_duplicate else event.get("limit", 0),
    )


def _sampling_fault(op: Json) -> int:
    """Return the first fault of an operation's sampling numbers as a reason, 0 without one."""
    temperature, top_p = float(op.get("temperature", 0.0)), float(op.get("top_p", 1.0))
    faults = (not 0 <= temperature < float("inf"), op.get("top_k", 0) < 0, not 0 < top_p <= 1)
    return next((5 + idx for idx, is_faulty in enumerate(faults) if is_faulty), 0)


def _inner_event(inner: Json) -> Event:
    name = inner["do"]
    fields = KINDS[CODES[name]][1]
    return (CODES[name], *(_code(field, inner[field]) for field in fields))


def _code(field: str, value: Any) -> Any:
    if field == "why":
        return 1 + WHY.index(value)
    if field == "finish_reason":
        return 0 if value is None else 1 + FINISH_REASONS.index(value)
    if field == "phase":
        return 1 + PHASES.index(value)
    if field == "token":
        return -1 if value is None else value
    if field == "requests":
        return tuple(
            (uid, cached_len, device_len, int(sampled)) for uid, cached_len, device_len, sampled in value
        )
    return tuple(value) if isinstance(value, list) else value


def _with_tokens(events: Sequence[Event]) -> list[Event]:
    """Give every launch the tokens that its replies will bring; 0 where no reply comes."""
    tokens = _tokens_of_batches(events)
    launch = CODES["launch"]
    return [
        (*event, tuple(tokens.get((event[1], request[0]), 0) for request in event[3]))
        if event[0] == launch
        else event
        for event in events
    ]


def _tokens_of_batches(events: Iterable[Event]) -> dict[tuple[int, int], int]:
    tokens: dict[tuple[int, int], int] = {}
    batch = 0
    for event in events:
        if event[0] == CODES["process"]:
            batch = event[1]
        elif event[0] == CODES["reply"] and event[2] >= 0:
            tokens[batch, event[1]] = event[2]
    return tokens


# -- TLA+ --------------------------------------------------------------------------------------


def to_tla(value: Any) -> str:
    """Return integers and nested tuples in TLA+."""
    if isinstance(value, int):
        return str(int(value))
    return f"<<{','.join(to_tla(item) for item in value)}>>" if value else "<< >>"


def batch_module(traces: Sequence[Trace], name: str) -> str:
    """Return the module of a batch of traces."""
    lines = [f"---- MODULE {name} ----", "EXTENDS TraceScheduler"]
    logs: list[str] = []
    for number, trace in enumerate(traces, 1):
        chunks = [trace.events[start : start + CHUNK_LEN] for start in range(0, len(trace.events), CHUNK_LEN)]
        names = [f"t{number}_{idx}" for idx in range(len(chunks))]
        lines += [f"{name} == {to_tla(chunk)}" for name, chunk in zip(names, chunks, strict=True)]
        lines.append(f"t{number} == <<{', '.join([to_tla(trace.header), *names])}>>")
        logs.append(f"t{number}")
    return "\n".join([*lines, f"log_batch == <<{', '.join(logs)}>>", "===="]) + "\n"


def batch_config(settings: Mapping[str, str], template: str) -> str:
    """Return the model file of a batch: the template with some constants changed."""
    for constant, value in settings.items():
        template = re.sub(rf"(?m)^(\s*{constant} =).*$", rf"\1 {value}", template)
    return template


def validate(traces: Sequence[Trace], tla: Path, workers: int = 1, **settings: str) -> Verdict:
    """Let TLC follow a batch of traces.

    Args:
        tla:       the folder with the modules.
        settings:  constants of TraceScheduler.cfg to change.
    """
    template = (tla / "TraceScheduler.cfg").read_text()
    with tempfile.TemporaryDirectory(prefix="traces-") as folder:
        module = Path(folder) / "TraceBatch.tla"
        module.write_text(batch_module(traces, "TraceBatch"))
        config = Path(folder) / "TraceBatch.cfg"
        config.write_text(batch_config(settings, template))
        outcome = tlc.run(module, config, workers=workers, options=("-deadlock",), library=tla)
    return read_verdict(traces, outcome)


def read_verdict(traces: Sequence[Trace], outcome: tlc.Outcome) -> Verdict:
    """Read the witnesses: a trace is accepted if TLC says that it followed exactly all of its events."""
    witnesses = {
        (int(trace), int(count)) for trace, count in re.findall(r'<<"accepted", (\d+), (\d+)>>', outcome.text)
    }
    accepted = frozenset(idx for idx, trace in enumerate(traces) if (idx + 1, len(trace.events)) in witnesses)
    outcomes = frozenset(int(number) for number in re.findall(r'<<"outcome", (\d+)>>', outcome.text))
    return Verdict(len(traces), accepted, outcomes, outcome)


def explain(trace: Trace, tla: Path) -> Rejection | None:
    """Say where a trace leaves the model, or None if it does not."""
    followed = _look(trace, tla, len(trace.events)).outcome.text
    reached = max((int(count) for count in re.findall(r'<<"followed", (\d+)>>', followed)), default=0)
    if reached == len(trace.events):
        return None
    text = _look(trace, tla, reached).outcome.text
    answers = tuple(
        dict.fromkeys(_parse(found) for found in re.findall(r'<<"model", (<<.*?>>)>>\n', text, re.DOTALL))
    )
    return Rejection(reached, trace.events[reached], answers)


def _look(trace: Trace, tla: Path, stop_at: int) -> Verdict:
    return validate([trace], tla, is_explaining="TRUE", stop_at=str(stop_at), is_counting_outcomes="FALSE")


def _parse(text: str) -> Event:
    """Read a tuple that TLC printed."""
    python = re.sub(r"<<\s*>>", "()", text).replace("<<", "(").replace(">>", ",)")
    value: Event = eval(python, {"__builtins__": {}})
    return value
