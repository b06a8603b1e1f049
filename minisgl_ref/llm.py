"""LLM: a model, its tokenizer and an engine behind one call, `generate`.

Prompts go in as text, token ids or a chat; outputs come back whole, in order, or piece by piece. A
prompt the engine refuses has its refusal as its output, and the others go on. However a call ends,
with its last token, an exception or a closed stream, none of its requests stays behind.

Streams of one LLM may be read alternately: whichever needs a token runs a step for all. One thread at
a time; nothing here schedules, samples or touches device memory.
Chapter: spec/04-requests.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, overload

import torch

from minisgl_ref.build import build_scheduler, choose_backend
from minisgl_ref.config import EngineConfig
from minisgl_ref.core import SamplingParams
from minisgl_spec.errors import ContractError, InvariantError, Refusal, Violation
from minisgl_spec.messages import ABORT, Reply

if TYPE_CHECKING:
    from minisgl_kernels.backends import Ops
    from minisgl_ref.models.base import Model
    from minisgl_ref.record import Recording
    from minisgl_ref.scheduler.scheduler import Scheduler
    from minisgl_ref.tokenizer import TextStream, Tokenizer
    from minisgl_ref.trace import Recorder

REFUSED = "refused"
"""finish_reason of a prompt that the engine did not take; the others are those of a reply."""

Message = Mapping[str, str]
"""One message of a chat: role and content."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or a chat up to where the assistant answers."""

PROMPT = "text, a list of token ids, or a list of messages with role and content"


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
        ops = choose_backend(config.backend, config.device)
        model, tokenizer = load(path, dtype=config.dtype, device=config.device, backend=ops.name)
        self._start(model, tokenizer, config, ops, None)

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
        config = config or EngineConfig()
        llm = cls.__new__(cls)
        llm._start(model, tokenizer, config, choose_backend(config.backend, config.device), recorder)
        return llm

    def _start(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        config: EngineConfig,
        ops: Ops,
        recorder: Recorder | None,
    ) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self.tokenizer = tokenizer
        self.scheduler = build_scheduler(model, config, ops, recorder=recorder)
        self._config = config
        self._recording: Recording | None = None
        self._uids = count()
        self._open: dict[int, _Call] = {}  # by uid, of requests that have had no terminal reply
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
    ) -> Generator[Piece, None, None]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        stream: bool = False,
    ) -> list[Output] | Generator[Piece, None, None]:
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
        several = _prompts_of(prompts)
        each = _params_of(params, len(several))
        call = _Call([(self._ids_of(prompt), one) for prompt, one in zip(several, each, strict=True)])
        return self._pieces(call) if stream else self._outputs(call)

    def abort(self, uid: int) -> Refusal | None:
        """End a request of a stream under way; its last piece comes with finish_reason "abort".

        Returns: None, or a refusal if no request of this uid is left to end.
        """
        self._check_running("abort")
        with self._watched():
            refusal = self._asked.abort(uid)
        call = self._open.get(uid)
        if refusal is None and call is not None:  # no token after abort has returned
            call.inbox = deque(reply for reply in call.inbox if reply.uid != uid)
        return refusal

    def reset(self) -> None:
        """Empty the prefix cache.

        Raises: ContractError while a request is running.
        """
        self._check_running("reset")
        with self._watched():
            self._asked.reset()

    def record(self) -> Recording:
        """Write down, from now on, what the engine is asked and what it answers.

        Returns: the recording; the same one when asked again.

        Raises: ContractError if the engine has been used before.
        """
        if self._recording is None:
            from minisgl_ref.record import Recording

            self._recording = Recording(self.scheduler, self._config)
        return self._recording

    @property
    def _asked(self) -> Scheduler | Recording:
        """Whom operations go to: the scheduler, or the recording on their way there."""
        return self._recording or self.scheduler

    # -- what a call was given -----------------------------------------------------------------

    def _ids_of(self, prompt: Prompt) -> list[int]:
        if _is_ids(prompt):
            return list(cast("Sequence[int]", prompt))
        if self.tokenizer is None:
            raise ContractError(
                "generate", "a model with a tokenizer", {"prompt": _short(prompt)}, "Pass token ids."
            )
        if isinstance(prompt, str):
            _check_text(prompt)
            return self.tokenizer.encode(prompt)
        messages = cast("Sequence[Message]", prompt)
        for message in messages:
            _check_text(message["content"])
        return self.tokenizer.encode_chat(messages)

    # -- from replies to what a call returns -----------------------------------------------------

    def _outputs(self, call: _Call) -> list[Output]:
        tokens: list[list[int]] = [[] for _ in call.items]
        ends: dict[int, Reply] = {}
        with closing(self._replies(call)) as replies:
            for index, reply in replies:
                if reply.token is not None:
                    tokens[index].append(reply.token)
                if reply.finish_reason is not None:
                    ends[index] = reply
        return [
            Output(
                text=self.tokenizer.decode(tokens[index]) if self.tokenizer is not None else "",
                output_ids=tuple(tokens[index]),
                finish_reason=str(end.finish_reason),
                cached_len=end.cached_len,
                prompt_len=len(call.items[index][0]),
                refusal=call.refusals.get(end.uid),
            )
            for index, end in sorted(ends.items())
        ]

    def _pieces(self, call: _Call) -> Generator[Piece, None, None]:
        texts = [self.tokenizer.stream() if self.tokenizer is not None else None for _ in call.items]
        with closing(self._replies(call)) as replies:
            for index, reply in replies:
                yield Piece(
                    index=index,
                    uid=reply.uid,
                    token=reply.token,
                    text=_text_of(texts[index], reply),
                    finish_reason=reply.finish_reason,
                    cached_len=reply.cached_len,
                    refusal=call.refusals.get(reply.uid),
                )

    # -- the requests of a call ------------------------------------------------------------------

    def _replies(self, call: _Call) -> Generator[tuple[int, Reply], None, None]:
        """Queue a call's prompts and yield replies with the index of their prompt until all have ended.

        Mutates: the scheduler; at the end no request of the call is left in it.
        """
        self._check_running("generate")
        try:
            self._submit(call)
            while call.index_of:
                if not call.inbox:
                    self._step()
                    self._check_alive(call)
                while call.inbox:
                    reply = call.inbox.popleft()
                    index = call.index_of[reply.uid]
                    if reply.finish_reason is not None:
                        del call.index_of[reply.uid]
                    yield index, reply
        finally:
            self._settle(call)

    def _submit(self, call: _Call) -> None:
        for index, (ids, params) in enumerate(call.items):
            uid = next(self._uids)
            with self._watched():
                refusal = self._asked.submit(uid, ids, params)
            call.index_of[uid] = index
            if refusal is None:
                call.accepted.append(uid)
                self._open[uid] = call
            else:
                call.refusals[uid] = refusal
                call.inbox.append(Reply(uid, None, REFUSED, 0))

    def _step(self) -> None:
        """Run one step for every call under way; if it fails, end all their requests."""
        with self._watched():
            try:
                replies = self._asked.step()
            except InvariantError:
                raise
            except BaseException:
                self._abort(list(self._open))
                self._asked.step()  # launches nothing, and takes in the ends of what failed
                raise
        for reply in replies:
            self._deliver(reply)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Stop for good at a broken invariant: the state is unknown, nothing may be touched any more."""
        try:
            yield
        except InvariantError as error:
            self._stopped = error
            raise

    def _deliver(self, reply: Reply) -> None:
        """Put a reply into the inbox of its call, if that still waits for it."""
        call = self._open.get(reply.uid)
        if call is not None:
            call.inbox.append(reply)
            if reply.finish_reason is not None:
                del self._open[reply.uid]

    def _abort(self, uids: Sequence[int]) -> None:
        for uid in uids:
            self._asked.abort(uid)
            self._deliver(Reply(uid, None, ABORT, 0))

    def _settle(self, call: _Call) -> None:
        """End what is left of a call; one step takes in every batch that was launched for it."""
        if self._stopped is not None:
            return
        left = [uid for uid in call.accepted if uid in self._open]
        with self._watched():
            self._abort(left)
            is_held = any(uid in self.scheduler.requests for uid in call.accepted)
        if left or is_held:
            self._step()

    def _check_alive(self, call: _Call) -> None:
        if not call.inbox and self.scheduler.is_idle():
            lost = f"uids {sorted(call.index_of)} have no terminal reply and the engine is idle"
            with self._watched():
                raise InvariantError([Violation("replied_once", lost)])

    def _check_running(self, operation: str) -> None:
        if self._stopped is not None:
            raise ContractError(
                operation, "an engine that has not stopped", {"stopped_by": self._stopped}, "Build a new one."
            )


class _Call:
    """One call of `generate` under way.

    items:     token ids and parameters of each prompt.
    index_of:  by uid, which prompt; of those whose end has not been handed out.
    accepted:  uids of the prompts that the engine took.
    refusals:  by uid, of the others.
    inbox:     replies not handed out, in the order in which they came.
    """

    __slots__ = ("accepted", "inbox", "index_of", "items", "refusals")

    def __init__(self, items: Sequence[tuple[list[int], SamplingParams]]) -> None:
        self.items = items
        self.index_of: dict[int, int] = {}
        self.accepted: list[int] = []
        self.refusals: dict[int, Refusal] = {}
        self.inbox: deque[Reply] = deque()


def _text_of(stream: TextStream | None, reply: Reply) -> str:
    """The text that becomes certain with a reply."""
    if stream is None:
        return ""
    text = stream.push(reply.token) if reply.token is not None else ""
    return text + stream.finish() if reply.finish_reason is not None else text


# -- what a call was given: its types; values are the engine's to judge ----------------------------


def _prompts_of(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Take one prompt or several apart.

    Raises: ContractError for anything that is no prompt, with its place and type.
    """
    if not isinstance(prompts, str | list | tuple):
        raise _wrong_type("prompts", f"a prompt ({PROMPT}), or a list of prompts", prompts)
    if isinstance(prompts, str) or (prompts and (_is_ids(prompts) or _is_chat(prompts))):
        return [cast("Prompt", prompts)]
    for index, prompt in enumerate(prompts):
        if not (isinstance(prompt, str) or _is_ids(prompt) or _is_chat(prompt)):
            raise _wrong_type(f"prompts[{index}]", PROMPT, prompt)
    return list(prompts)


def _is_ids(prompt: object) -> bool:
    return isinstance(prompt, list | tuple) and all(_is_int(token) for token in prompt)


def _is_chat(prompt: object) -> bool:
    """Whether a prompt is a list of messages, each with a role and a content."""
    return (
        isinstance(prompt, list | tuple)
        and bool(prompt)
        and all(
            isinstance(message, Mapping)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
            for message in prompt
        )
    )


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _wrong_type("prompt", "text without half of a surrogate pair", text) from error


def _params_of(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """One set of parameters for each prompt.

    Raises: ContractError for another number of them, or a value of the wrong type.
    """
    if params is None or isinstance(params, SamplingParams):
        each = [params or SamplingParams()] * num_prompts
    elif isinstance(params, list | tuple):
        each = list(params)
    else:
        raise _wrong_type("params", "SamplingParams, or a list with one per prompt", params)
    if len(each) != num_prompts:
        got = {"params": len(each), "prompts": num_prompts}
        raise ContractError("generate", "one SamplingParams per prompt", got)
    for one in each:
        _check_params(one)
    return each


def _check_params(params: SamplingParams) -> None:
    if not isinstance(params, SamplingParams):
        raise _wrong_type("params", "SamplingParams", params)
    for name in ("max_tokens", "top_k", "seed"):
        if not _is_int(getattr(params, name)):
            raise _wrong_type(name, "a whole number", getattr(params, name))
    for name in ("temperature", "top_p"):
        value = getattr(params, name)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise _wrong_type(name, "a number", value)
    if not isinstance(params.ignore_eos, bool):
        raise _wrong_type("ignore_eos", "True or False", params.ignore_eos)
    stop_ids = params.stop_token_ids
    if not isinstance(stop_ids, Set | list | tuple) or not all(_is_int(token) for token in stop_ids):
        raise _wrong_type("stop_token_ids", "token ids", stop_ids)


def _wrong_type(name: str, need: str, value: object) -> ContractError:
    return ContractError(
        "generate", f"{name}: {need}", {"value": _short(value), "type": type(value).__name__}
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
