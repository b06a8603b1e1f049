"""Recording: the program and the log of a run that serves, in the words of `minisgl_spec.trace`.

What is asked of a scheduler goes through here on its way; operations and answers are written down as
the conformance runner writes them, inner events included, so that TLC can follow the run and, where
the model is one that programs know, anybody can repeat it.

Nothing here changes what the scheduler does. A submission that is malformed is refused and left out:
no program could ask for it.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from minisgl_ref.core import SamplingParams, malformed, plain_params
from minisgl_ref.models.digest import DigestModel
from minisgl_ref.scheduler.scheduler import Scheduler
from minisgl_spec.errors import ContractError, Refusal
from minisgl_spec.messages import Reply
from minisgl_spec.trace import Json, Log, Program, dump_log, dump_program, encode_float

if TYPE_CHECKING:
    from minisgl_ref.config import EngineConfig


class Recording:
    """A scheduler's operations, passed on and written down."""

    def __init__(self, scheduler: Scheduler, config: EngineConfig) -> None:
        """Begin to record; the engine's inner events are switched on.

        Raises: ContractError if the scheduler has been used: a program begins with an empty engine.
        """
        if not scheduler.is_new():
            got = {"requests": len(scheduler.requests), "cached": scheduler.cache.prefix_cache.evictable_size}
            raise ContractError("record", "an engine that has not been used", got, "Build a new one.")
        self._scheduler = scheduler
        self._config = _config_of(scheduler, config)
        self._ops: list[Json] = []
        self._events: list[Json] = []
        scheduler.recorder.is_on = True

    def program(self) -> Program:
        """Return what was asked so far."""
        return Program("engine", self._config, tuple(self._ops), {"recorded": True})

    def log(self) -> Log:
        """Return what was answered so far, an event per operation."""
        return Log("engine", self._config, tuple(self._events))

    def write(self, folder: Path, name: str = "run") -> None:
        """Write NAME.program.jsonl and NAME.log.jsonl into a folder, made if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.program.jsonl").write_text(dump_program(self.program()), encoding="utf-8")
        (folder / f"{name}.log.jsonl").write_text(dump_log(self.log()), encoding="utf-8")

    # -- a scheduler's operations ----------------------------------------------------------------

    def submit(self, uid: int, ids: Sequence[int], params: SamplingParams) -> Refusal | None:
        """As `Scheduler.submit`."""
        refusal = self._scheduler.submit(uid, ids, params)
        if malformed(ids, params) is None:
            event: Json = {"event": "submit", "uid": uid, "accepted": refusal is None}
            if refusal is not None:
                value = encode_float(refusal.value) if isinstance(refusal.value, float) else refusal.value
                event |= {"reason": refusal.reason, "value": value, "limit": refusal.limit}
            self._add(_submission(uid, ids, plain_params(params)), event)
        return refusal

    def abort(self, uid: int) -> Refusal | None:
        """As `Scheduler.abort`."""
        refusal = self._scheduler.abort(uid)
        event: Json = {"event": "abort", "uid": uid, "accepted": refusal is None, "inner": self._inner()}
        if refusal is not None:
            event["reason"] = refusal.reason
        self._add({"op": "abort", "uid": uid}, event)
        return refusal

    def step(self) -> list[Reply]:
        """As `Scheduler.step`; a step that raises is written down with what it raised."""
        try:
            replies = self._scheduler.step()
        except BaseException as error:
            self._add({"op": "step"}, {"event": "step", "raised": type(error).__name__})
            raise
        told = [asdict(reply) for reply in replies]
        self._add({"op": "step"}, {"event": "step", "replies": told, "inner": self._inner(), **self._sizes()})
        return replies

    def reset(self) -> None:
        """As `Scheduler.reset`."""
        try:
            self._scheduler.reset()
        except ContractError:
            self._add({"op": "reset"}, {"event": "reset", "accepted": False})
            raise
        self._add({"op": "reset"}, {"event": "reset", "accepted": True})

    # -- what is written -------------------------------------------------------------------------

    def _add(self, op: Json, event: Json) -> None:
        self._ops.append(op)
        self._events.append(event)

    def _inner(self) -> list[Json]:
        return list(self._scheduler.recorder.events)

    def _sizes(self) -> Json:
        scheduler = self._scheduler
        cache = scheduler.cache.prefix_cache
        return {
            "free_pages": len(scheduler.cache.free_pages),
            "evictable_size": cache.evictable_size,
            "protected_size": cache.protected_size,
            "num_waiting": len(scheduler.requests) - len(scheduler.admitted),
            "num_running": len(scheduler.admitted),
        }


def _config_of(scheduler: Scheduler, config: EngineConfig) -> Json:
    """Return the configuration that a program's header has."""
    model = scheduler.engine.model
    on_cuda = config.device.startswith("cuda")
    return {
        "page_size": config.page_size,
        "num_pages": config.num_pages,
        "num_rows": config.num_rows,
        "max_seq_len": scheduler.max_seq_len,
        "token_budget": config.token_budget,
        "cache": config.cache,
        "overlap": config.overlap,
        "vocab_size": model.config.vocab_size,
        "eos_ids": sorted(model.config.eos_ids),
        "model": "digest" if isinstance(model, DigestModel) else type(model).__name__,
        "streams": config.streams or ("cuda" if on_cuda else "inline"),
    }


def _submission(uid: int, ids: Sequence[int], params: SamplingParams) -> Json:
    """Return a submission as an operation; what is not said is as it is by default."""
    said = {
        "stop_ids": list(params.stop_token_ids),
        "ignore_eos": params.ignore_eos,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "seed": params.seed,
    }
    unsaid: Json = {
        "stop_ids": [],
        "ignore_eos": False,
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "seed": 0,
    }
    options = {name: value for name, value in said.items() if value != unsaid[name]}
    op = {"op": "submit", "uid": uid, "ids": [int(token) for token in ids], "max_tokens": params.max_tokens}
    return {**op, **options}
