"""LLM: a model, its tokenizer and an engine behind one call, `generate`.

Prompts go in as text, token ids or a chat; outputs come back whole, in order, or piece by piece. A
prompt the engine refuses has its refusal as its output, and the others go on. However a call ends,
with its last token, an exception or a closed stream, none of its requests stays behind.

Streams of one LLM may be read alternately: whichever needs a token runs a step for all. One thread at
a time; nothing here schedules, samples or touches device memory.
Chapter: spec/04-requests.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, cast, overload

import torch

from minisgl_ref.build import build_scheduler, check_device, choose_backend
from minisgl_ref.config import EngineConfig
from minisgl_ref.core import SamplingParams
from minisgl_spec.errors import ContractError, InvariantError, Refusal
from minisgl_spec.messages import ABORT, Reply

if TYPE_CHECKING:
    from minisgl_ref.models.base import Model
    from minisgl_ref.tokenizer import TextStream, Tokenizer
    from minisgl_ref.trace import Recorder

REFUSED = "refused"
"""finish_reason of a prompt that the engine did not take; the others are those of a reply."""

Message = Mapping[str, str]
"""One message of a chat: role and content."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or a chat up to where the assistant answers."""

Item = tuple[list[int], SamplingParams]


@dataclass(frozen=True, slots=True)
class Output:
    """What one prompt brought.

    text:           of the output ids without special tokens; "" if the model has no tokenizer.
    output_ids:     the stop token included.
    finish_reason:  "stop", "length", "abort" or "refused".
    cached_len:     tokens of the prompt found in the cache at admission.
    prompt_len:     tokens of the prompt.
    refusal:        reason, value and limit of a refused prompt, else None; as text it shows all three.
    """

    text: str
    output_ids: tuple[int, ...]
    finish_reason: str
    cached_len: int
    prompt_len: int
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a stream, or the end of one prompt's.

    index:          which prompt of the call.
    uid:            the request, as `LLM.abort` takes it.
    token:          None if a refusal or an abort ends the prompt.
    text:           what is certain now; the texts of a prompt's pieces join to that of its output.
    finish_reason:  of the last piece of a prompt, else None.
    cached_len:     tokens of the prompt found in the cache at admission.
    refusal:        of a refused prompt, else None.
    """

    index: int
    uid: int
    token: int | None
    text: str
    finish_reason: str | None
    cached_len: int
    refusal: Refusal | None = None


class LLM:
    """A model that generates.

    tokenizer:  None if the model folder has none; prompts are token ids then.
    scheduler:  the engine underneath, for who wants to look.
    """

    def __init__(self, path: str | Path, config: EngineConfig | None = None) -> None:
        """Load a model folder or a GGUF file and build an engine around it.

        Args:
            path:    a folder with config.json and *.safetensors, or a GGUF file.
            config:  measures of the engine; the defaults suit a small model on a CPU.

        Raises: ContractError if path or config cannot be used; BackendUnavailable if this machine cannot.
        """
        from minisgl_ref.models.load import load

        config = config or EngineConfig()
        check_device(config.device)
        ops = choose_backend(config.backend, config.device)
        model, tokenizer = load(path, dtype=config.dtype, device=config.device, backend=ops.name)
        self._start(model, tokenizer, config, None)

    @classmethod
    def from_model(
        cls,
        model: Model,
        tokenizer: Tokenizer | None,
        config: EngineConfig | None = None,
        recorder: Recorder | None = None,
    ) -> LLM:
        """Build an engine around a model that is loaded already; several may share its weights.

        Args:
            recorder:  of the engine's inner events, if somebody wants them.
        """
        llm = cls.__new__(cls)
        llm._start(model, tokenizer, config or EngineConfig(), recorder)
        return llm

    def _start(
        self, model: Model, tokenizer: Tokenizer | None, config: EngineConfig, recorder: Recorder | None
    ) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        ops = choose_backend(config.backend, config.device)
        self.tokenizer = tokenizer
        self.scheduler = build_scheduler(model, config, ops, recorder=recorder)
        self._uids = count()
        # Replies that came while another stream ran the step, by uid, of the prompts not yet ended.
        self._inboxes: dict[int, list[Reply]] = {}
        self._stopped: InvariantError | None = None

    @property
    def max_seq_len(self) -> int:
        """Tokens of a prompt and its outputs together, at most."""
        return self.scheduler.max_seq_len

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        stream: Literal[False] = False,
    ) -> list[Output]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[True],
    ) -> Iterator[Piece]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        stream: bool = False,
    ) -> list[Output] | Iterator[Piece]:
        """Generate for one prompt or several.

        Args:
            prompts:  a prompt or a list of them; an empty list is no prompts, `[[]]` one that is refused.
            params:   for all prompts, or a list with one for each; they are only read.
            stream:   return pieces as they come; requests are queued when the first one is asked for,
                      and closing the stream aborts what is left.

        Returns: one output per prompt, in order; or the pieces of all of them.

        Raises: ContractError for a prompt or parameter of the wrong type, before anything is queued.
        Mutates: the cache; whatever else it changes is undone at the end.
        """
        self._check_running("generate")
        items = self._read(prompts, params)
        return self._pieces(items) if stream else self._outputs(items)

    def abort(self, uid: int) -> Refusal | None:
        """End a request of a stream under way; its last piece comes with finish_reason "abort".

        Returns: None, or a refusal if no request of this uid is left to end.
        """
        return self.scheduler.abort(uid)

    def reset(self) -> None:
        """Empty the prefix cache.

        Raises: ContractError while a request is running.
        """
        self._check_running("reset")
        self.scheduler.reset()

    # -- what a call was given -----------------------------------------------------------------

    def _read(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Item]:
        several = _prompts_of(prompts)
        if params is None or isinstance(params, SamplingParams):
            each: list[SamplingParams] = [params or SamplingParams()] * len(several)
        elif isinstance(params, list | tuple):
            each = list(params)
        else:
            _refuse_type("params: SamplingParams or a list of them", "params", params)
        if len(each) != len(several):
            raise ContractError(
                "generate", "one params per prompt", {"params": len(each), "prompts": len(several)}
            )
        for one in each:
            _check_params(one)
        return [(self._ids_of(prompt), one) for prompt, one in zip(several, each, strict=True)]

    def _ids_of(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str) and not _is_chat(prompt):
            return list(cast("Sequence[int]", prompt))
        if self.tokenizer is None:
            raise ContractError(
                "generate",
                "a model with a tokenizer for text and chats",
                {"prompt": _short(prompt)},
                "Pass token ids.",
            )
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return self.tokenizer.encode_chat(cast("Sequence[Message]", prompt))

    # -- from replies to what a call returns -----------------------------------------------------

    def _outputs(self, items: list[Item]) -> list[Output]:
        tokens: list[list[int]] = [[] for _ in items]
        ends: dict[int, Reply] = {}
        refusals: dict[int, Refusal] = {}
        for index, reply in self._replies(items):
            if isinstance(reply, Refusal):
                refusals[index] = reply
                continue
            if reply.token is not None:
                tokens[index].append(reply.token)
            if reply.finish_reason is not None:
                ends[index] = reply
        outputs = []
        for index, (ids, _) in enumerate(items):
            end = ends.get(index)
            outputs.append(
                Output(
                    text=self.tokenizer.decode(tokens[index]) if self.tokenizer is not None else "",
                    output_ids=tuple(tokens[index]),
                    finish_reason=(end.finish_reason if end is not None else None) or REFUSED,
                    cached_len=end.cached_len if end is not None else 0,
                    prompt_len=len(ids),
                    refusal=refusals.get(index),
                )
            )
        return outputs

    def _pieces(self, items: list[Item]) -> Iterator[Piece]:
        texts = [self.tokenizer.stream() if self.tokenizer is not None else None for _ in items]
        replies = self._replies(items)
        try:
            for index, reply in replies:
                if isinstance(reply, Refusal):
                    yield Piece(index, -1, None, "", REFUSED, 0, reply)
                else:
                    text = _text_of(texts[index], reply)
                    yield Piece(index, reply.uid, reply.token, text, reply.finish_reason, reply.cached_len)
        finally:
            replies.close()

    # -- requests of one call ------------------------------------------------------------------

    def _replies(self, items: list[Item]) -> Generator[tuple[int, Reply | Refusal]]:
        """Queue the prompts and yield what comes, with the index of the prompt, until all have ended."""
        index_of: dict[int, int] = {}  # by uid, of the prompts not yet ended
        uids: list[int] = []
        refused: list[tuple[int, Refusal]] = []
        self._check_running("generate")
        try:
            for index, (ids, params) in enumerate(items):
                uid = next(self._uids)
                refusal = self.scheduler.submit(uid, ids, params)
                if refusal is not None:
                    refused.append((index, refusal))
                    continue
                index_of[uid] = index
                uids.append(uid)
                self._inboxes[uid] = []
            yield from refused
            while index_of:
                arrived = self._take(index_of)
                for reply in arrived:
                    index = index_of[reply.uid]
                    if reply.finish_reason is not None:
                        del index_of[reply.uid], self._inboxes[reply.uid]
                    yield index, reply
        finally:
            self._settle(uids)
