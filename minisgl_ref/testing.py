"""Our engine as a conformance target: the same engine that serves, with its device watched.

The target answers what `minisgl_conformance.targets.EngineTarget` asks: it shows its views, its
inner events and what every batch really read on the device, and lets the program decide how late
device work runs. Unwritten slots hold NaN.

Nothing here judges.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from minisgl_kernels import backends
from minisgl_ref.build import build_scheduler, choose_backend
from minisgl_ref.checks import CheckLevel
from minisgl_ref.config import EngineConfig
from minisgl_ref.core import SamplingParams
from minisgl_ref.engine.sampler import sample
from minisgl_ref.models.base import Model
from minisgl_ref.models.digest import DigestModel
from minisgl_ref.scheduler.scheduler import Scheduler
from minisgl_ref.trace import Recorder
from minisgl_spec.errors import ContractError, Refusal
from minisgl_spec.messages import Execution, Reply, Sampling
from minisgl_spec.shadow import digest_codes, digest_logits
from minisgl_spec.trace import Json
from minisgl_spec.views import EngineView

TIE = 1e-4
"""Two logits closer than this are a tie: either token is right."""

NextToken = Callable[[tuple[int, ...], Sampling, int], tuple[int, ...]]


class EngineUnderTest:
    """A scheduler with a digest model or a tiny Llama, seen as an `EngineTarget`."""

    capabilities = frozenset(
        {"view", "executions", "late_work", "events", "exact", "reset", "refusals", "sampling", "naive"}
    )

    def __init__(self, scheduler: Scheduler, next_token: NextToken) -> None:
        self.scheduler = scheduler
        self._next_token = next_token
        self._executions: list[Execution] = []
        scheduler.engine.probe = self._executions.append

    def submit(
        self,
        uid: int,
        ids: Sequence[int],
        max_tokens: int,
        *,
        stop_ids: Sequence[int] = (),
        **options: Any,
    ) -> Refusal | None:
        """Queue a request, or say why not; options are the other fields of `SamplingParams`."""
        params = SamplingParams(max_tokens, stop_token_ids=tuple(stop_ids), **options)
        return self.scheduler.submit(uid, ids, params)

    def abort(self, uid: int) -> Refusal | None:
        """End a request, or say that there is none."""
        return self.scheduler.abort(uid)

    def plan(self, progress: Sequence[int]) -> None:
        """Decide how far device work comes during the next step."""
        self.scheduler.engine.streams.plan(progress)

    def step(self) -> list[Reply]:
        """Run one step."""
        return self.scheduler.step()

    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return self.scheduler.is_idle()

    def reset(self) -> None:
        """Empty the cache; refused while a handle is locked."""
        self.scheduler.reset()

    def view(self) -> EngineView:
        """Return a picture of everything."""
        return self.scheduler.view()

    def last_event(self) -> list[Json]:
        """Return the inner events of the last operation."""
        return self.scheduler.recorder.events

    def executions(self) -> list[Execution]:
        """Return what the device has run since the last call, in its order."""
        ran = list(self._executions)
        self._executions.clear()
        return ran

    def next_token(self, ids: Sequence[int], sampling: Sampling, output_idx: int) -> tuple[int, ...]:
        """Return the tokens the model permits after `ids`: one, or those that tie."""
        return self._next_token(tuple(ids), sampling, output_idx)


def make_engine_target(
    config: Mapping[str, Any],
    check_level: CheckLevel = CheckLevel.FULL,
    backend: str | None = None,
    device: str = "cpu",
) -> EngineUnderTest:
    """Build a target from a program's configuration.

    On a CUDA device work runs on CUDA streams, whatever the program says of streams.

    Raises: ContractError for a model that is unknown or not as the program says; BackendUnavailable as the
            parts do.
    """
    on_cuda = device.startswith("cuda")
    ops = choose_backend("torch" if on_cuda and backend is None else backend)
    model, next_token = _model_of(config, ops, device)
    engine_config = EngineConfig(
        page_size=config["page_size"],
        num_pages=config["num_pages"],
        num_rows=config["num_rows"],
        max_seq_len=config["max_seq_len"],
        token_budget=config["token_budget"],
        cache=config.get("cache", "radix"),
        overlap=config.get("overlap", False),
        device=device,
        streams="cuda" if on_cuda else config.get("streams", "simulated"),
        check_level=check_level,
    )
    scheduler = build_scheduler(model, engine_config, ops, recorder=Recorder(is_on=True), fill=float("nan"))
    return EngineUnderTest(scheduler, next_token)


def _model_of(config: Mapping[str, Any], ops: backends.Ops, device: str) -> tuple[Model, NextToken]:
    kind = config.get("model", "digest")
    eos_ids = tuple(config.get("eos_ids", ()))
    if kind == "digest":
        vocab_size = config["vocab_size"]
        return (
            DigestModel(vocab_size, eos_ids, config["max_seq_len"], ops),
            lambda ids, sampling, output_idx: (_digest_token(ids, sampling, output_idx, vocab_size),),
        )
    if kind == "tiny-llama":
        from minisgl_ref.models.tiny import tiny_llama

        _check_llama(config)
        return tiny_llama(ops.name, eos_ids=eos_ids, device=device), _llama_tokens
    raise ContractError("make_engine_target", "model in digest, tiny-llama", {"model": repr(kind)})


def _check_llama(config: Mapping[str, Any]) -> None:
    """Refuse a program that takes the tiny Llama for another model: oracle and engine would not agree."""
    from minisgl_ref.models.tiny import SETTINGS

    vocab_size, longest = SETTINGS["vocab_size"], SETTINGS["max_position_embeddings"]
    got = {name: config.get(name) for name in ("vocab_size", "max_seq_len", "eos_ids")}
    is_its_own = (
        got["vocab_size"] == vocab_size
        and config["max_seq_len"] <= longest
        and all(0 <= token < vocab_size for token in got["eos_ids"] or ())
    )
    if not is_its_own:
        need = (
            f"vocab_size = {vocab_size}, max_seq_len <= {longest}, eos_ids below {vocab_size} for tiny-llama"
        )
        raise ContractError("make_engine_target", need, got)


@lru_cache(maxsize=65_536)
def _digest_token(ids: tuple[int, ...], sampling: Sampling, output_idx: int, vocab_size: int) -> int:
    """The digest model's next token by its definition, without a pool and without a kernel."""
    return _choose(digest_logits(digest_codes(ids)[-1], vocab_size), sampling, output_idx)[0]


@lru_cache(maxsize=65_536)
def _llama_tokens(ids: tuple[int, ...], sampling: Sampling, output_idx: int) -> tuple[int, ...]:
    """The tiny Llama's next token by transformers, without a cache."""
    with torch.no_grad():
        logits = _judge()(torch.tensor([ids])).logits[0, -1]
    return _choose(tuple(logits.tolist()), sampling, output_idx)


@lru_cache(maxsize=1)
def _judge() -> Any:
    from minisgl_ref.models.tiny import tiny_llama_judge

    return tiny_llama_judge()


def _choose(logits: Sequence[float], sampling: Sampling, output_idx: int) -> tuple[int, ...]:
    """Return the token of greedy or seeded sampling; for greedy, every token that ties with the best."""
    if sampling.temperature > 0:
        row = torch.tensor([logits], dtype=torch.float32)
        return (int(sample(row, [(sampling, output_idx)], backends.get("torch")).item()),)
    best = max(logits)
    token = logits.index(best)
    ties = [other for other, logit in enumerate(logits) if other != token and best - logit < TIE]
    return (token, *ties)
