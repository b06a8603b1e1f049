"""Records: random programs run on an engine, its events taken down next to the oracle's.

Prompts repeat and share prefixes, pools are small, aborts come at any time and submissions may be
refused: what a trace must show. Each recorded run is a program and its log, as `minisgl-ref replay`
reads them, and has been held to the oracle event by event.

Nothing here knows TLA+.
Chapter: tla/README.md
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minisgl_conformance.engine_runner import submission_of, submit
from minisgl_conformance.targets import MakeTarget
from minisgl_spec.errors import ContractError, InvariantError
from minisgl_spec.numerics import digest_next_token
from minisgl_spec.requests import Config
from minisgl_spec.scheduler import Scheduler
from minisgl_spec.trace import Json, Log, Program

ENGINE = "engine"
"""Who is to blame where an engine and the oracle differ: the engine claims the oracle's decisions."""


@dataclass(frozen=True)
class Disagreement:
    """Two judges that differ: after which operation, and what each of them has."""

    op_idx: int
    culprit: str
    fact: str


@dataclass(frozen=True)
class Recorded:
    """A program, what the engine answered, and the first disagreement with the oracle."""

    program: Program
    log: Log
    disagreement: Disagreement | None


def draw_program(seed: int, num_ops: int = 120) -> Program:
    """Draw a program of level `engine` from a seed."""
    rng = random.Random(seed)
    page_size = rng.choice((1, 1, 2, 2, 3, 4))
    config: Json = {
        "page_size": page_size,
        "num_pages": rng.randint(3, 9),
        "num_rows": rng.randint(1, 4),
        "max_seq_len": rng.choice((6, 9, 16)),
        "token_budget": rng.randint(1, 9),
        "overlap": rng.random() < 0.6,
        "cache": rng.choice(("radix", "radix", "radix", "naive")),
        "vocab_size": 6,
        "eos_ids": [1],
        "model": "digest",
        "streams": "simulated",
    }
    ops: list[Json] = []
    prompts: list[list[int]] = []
    num_submitted = 0
    for _ in range(num_ops):
        chance = rng.random()
        if chance < 0.28:
            num_submitted += 1
            ops.append(_draw_submission(rng, config, num_submitted, prompts))
        elif chance < 0.36 and num_submitted:
            uid = rng.randint(max(1, num_submitted - 3), num_submitted)
            ops.append({"op": "abort", "uid": uid})
            if rng.random() < 0.1:
                ops.append(_draw_submission(rng, config, uid, prompts))
        elif chance < 0.38:
            ops.append({"op": "reset"})
        else:
            ops.append({"op": "step", "progress": [rng.choice((0, 0, 1, 2, 3)) for _ in range(4)]})
    return Program("engine", config, ops, {"seed": seed})


def _draw_submission(rng: random.Random, config: Json, uid: int, prompts: list[list[int]]) -> Json:
    kind = rng.random()
    if prompts and kind < 0.5:
        earlier = rng.choice(prompts[-4:])
        ids = earlier[: rng.randint(1, len(earlier))] + [rng.choice((2, 3)) for _ in range(rng.randint(0, 3))]
    else:
        ids = [rng.choice((2, 3)) for _ in range(rng.randint(1, 8))]
    op: Json = {"op": "submit", "uid": uid, "ids": ids, "max_tokens": rng.randint(1, 5), "seed": uid}
    if rng.random() < 0.4:
        op["temperature"] = 0.8
    if rng.random() < 0.3:
        op["stop_ids"] = [rng.randint(0, 5)]
    if rng.random() < 0.2:
        op["ignore_eos"] = True
    mistake = rng.random()
    if mistake < 0.01:
        op["ids"] = []
    elif mistake < 0.02:
        op["ids"] = [*ids, config["vocab_size"]]
    elif mistake < 0.03:
        op["max_tokens"] = -rng.randint(0, 1)
    elif mistake < 0.06:
        name, value = rng.choice((("temperature", -1.0), ("top_k", -1), ("top_p", 0.0)))
        op[name] = value
    elif mistake < 0.07:
        op["ids"] = [2] * (config["max_seq_len"] + rng.randint(0, 1))
    elif mistake < 0.09:
        op["max_tokens"] = 99
    elif mistake < 0.11 and uid > 1:
        op["uid"] = uid - 1
    else:
        prompts.append(ids)
    return op


def record(make_target: MakeTarget, program: Program, with_oracle: bool = True) -> Recorded:
    """Run a program on an engine that shows its events, and the oracle beside it.

    The run ends early where engine and oracle differ or one of them stops.
    """
    config = program.config
    target = make_target(config)
    limits = Config.from_json(config)
    oracle = Scheduler(
        limits, lambda ids, sampling, idx, uid: digest_next_token(ids, sampling, idx, limits.vocab_size)
    )
    events: list[Json] = []
    for op_idx, op in enumerate(program.ops):
        found = _run_both(target, oracle if with_oracle else None, op, events)
        if found is not None:
            log = Log(program.level, config, tuple(events))
            return Recorded(program, log, Disagreement(op_idx, *found))
    return Recorded(program, Log(program.level, config, tuple(events)), None)


def _run_both(target: Any, oracle: Scheduler | None, op: Json, events: list[Json]) -> tuple[str, str] | None:
    """Run one operation on both; return who is to blame for what, or None."""
    try:
        event = _run_target(target, op)
    except InvariantError as error:
        return ENGINE, f"{op['op']}: {error}"
    events.append(event)
    if oracle is None:
        return None
    expected = run_oracle(oracle, op)
    if event != expected:
        return ENGINE, f"{op['op']}: {event}; the oracle has {expected}"
    return None


def _run_target(target: Any, op: Json) -> Json:
    if op["op"] == "submit":
        return _submitted(op["uid"], submit(target, submission_of(op)))
    if op["op"] == "abort":
        refusal = target.abort(op["uid"])
        return {
            "event": "abort",
            "uid": op["uid"],
            "accepted": refusal is None,
            "inner": list(target.last_event()),
        }
    if op["op"] == "reset":
        return {"event": "reset", "accepted": _is_accepted(target.reset)}
    target.plan(op.get("progress", []))
    target.step()
    inner, view = list(target.last_event()), target.view()
    num_waiting = sum(request.row is None for request in view.requests)
    sizes = {
        "free_pages": len(view.free_pages),
        "evictable_size": view.cache.evictable_size,
        "protected_size": view.cache.protected_size,
        "num_waiting": num_waiting,
        "num_running": len(view.requests) - num_waiting,
    }
    return {"event": "step", "inner": inner, **sizes}


def run_oracle(oracle: Scheduler, op: Json) -> Json:
    """Run one operation on the oracle; return its event, as a runner writes it."""
    if op["op"] == "submit":
        return _submitted(op["uid"], oracle.submit(submission_of(op)))
    if op["op"] == "abort":
        refusal = oracle.abort(op["uid"])
        return {"event": "abort", "uid": op["uid"], "accepted": refusal is None, "inner": list(oracle.inner)}
    if op["op"] == "reset":
        return {"event": "reset", "accepted": _is_accepted(oracle.reset)}
    oracle.step()
    return {"event": "step", "inner": list(oracle.inner), **oracle.sizes()}


def _submitted(uid: int, refusal: Any) -> Json:
    event: Json = {"event": "submit", "uid": uid, "accepted": refusal is None}
    return (
        event
        if refusal is None
        else {**event, "reason": refusal.reason, "value": refusal.value, "limit": refusal.limit}
    )


def _is_accepted(reset: Callable[[], None]) -> bool:
    try:
        reset()
    except ContractError:
        return False
    return True
