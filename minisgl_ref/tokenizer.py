"""Text to token ids and back, from the same place as the weights.

Streaming text is not the sum of its tokens' texts: a token may end in the middle of a character, and
spaces belong to what comes next. So a stream decodes a short run of tokens twice, with and without the
newest, and gives out the difference once it holds only whole characters.

This file never reads a file (`models/load.py` does) and never decides when a sequence ends; `eos_ids`
only says what the tokenizer itself declares.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minisgl_spec.errors import ContractError

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """A model's tokenizer, with its chat template where it has one."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a transformers tokenizer."""
        self._tokenizer = tokenizer

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The token that the tokenizer declares to end a sequence, if any."""
        token = self._tokenizer.eos_token_id
        return () if token is None else (int(token),)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used."""
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the model expects around a prompt."""
        return [int(token) for token in self._tokenizer(text)["input_ids"]]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        Args:
            messages: each with a role and a content.

        Raises: ContractError if the model has no chat template, or the template refuses the messages.
        """
        if not self.has_chat_template:
            raise ContractError("encode_chat", "a model with a chat template", {"messages": len(messages)})
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program of the model's author
            raise ContractError(
                "encode_chat", "messages that the template takes", {"error": error}
            ) from error
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def stream(self) -> TextStream:
        """A new stream that turns one sequence's tokens into text as they come."""
        return TextStream(self)


class TextStream:
    """The text of one growing sequence; the pieces given out join to the text of the whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        # [0, start)      given out and no longer needed to decode what follows
        # [start, given)  given out; decoded again, as what comes before the next text
        # [given, end)    not given out: ends in the middle of a character
        self._start = 0
        self._given = 0

    def push(self, token: int) -> str:
        """Take the next token and return the text that is now certain; often a word, sometimes "".

        Mutates: this stream.
        """
        self._ids.append(token)
        return self._advance(last=False)

    def finish(self) -> str:
        """The text still held back, at the end of a sequence.

        Mutates: this stream.
        """
        return self._advance(last=True)

    def _advance(self, last: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._start : self._given])
        now = self._tokenizer.decode(self._ids[self._start :])
        if (not last and now.endswith(INCOMPLETE)) or len(now) <= len(before):
            return ""
        self._start, self._given = self._given, len(self._ids)
        return now[len(before) :]
