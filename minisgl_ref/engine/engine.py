"""The engine: device memory, the model, and the work that runs a batch.

It owns the KV pool, the page table and the token pool, and hands work to two streams: table writes
to the scheduler's, batches to its own. A batch reads its tokens and slots from the device when it
executes, runs the model, samples, and writes the sampled tokens where the next step reads them.

Which requests run, and on which pages, is the scheduler's business.
Chapter: spec/07-overlap.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from minisgl_ref.core import Batch
from minisgl_ref.engine.attention import AttentionBatch
from minisgl_ref.engine.graph import DecodeGraphs, Inputs
from minisgl_ref.engine.sampler import sample
from minisgl_ref.engine.stream import ENGINE, SCHEDULER, Streams
from minisgl_ref.kvcache.mha_pool import MHAKVCache
from minisgl_ref.scheduler.table import TableManager
from minisgl_spec.messages import ExecutedRequest, Execution, Sampling

if TYPE_CHECKING:
    from minisgl_kernels.backends import Ops
    from minisgl_ref.models.base import Model

Probe = Callable[[Execution], None]


@dataclass
class Result:
    """The tokens of a launched batch, one per request; read them through `Engine.collect`."""

    event: Any = None  # happens when the tokens are there
    tokens: torch.Tensor | None = None  # [num_reqs] i64 on the host


@dataclass(frozen=True)
class _Inputs:
    """What a launched batch carries to the device: lengths and choices, no tokens and no slots."""

    number: int
    uids: tuple[int, ...]
    rows: tuple[int, ...]
    cached_lens: tuple[int, ...]
    device_lens: tuple[int, ...]
    sampled: tuple[bool, ...]
    choices: tuple[tuple[Sampling, int], ...] = field(repr=False)


class Engine:
    """One model on one device with its pools.

    probe:   called on the device's timeline with what each batch really read; None costs nothing.
    graphs:  recorded decode steps; None runs every batch operation by operation.
    """

    def __init__(
        self, model: Model, kv_pool: MHAKVCache, table: TableManager, streams: Streams, ops: Ops
    ) -> None:
        self.model = model
        self.kv_pool = kv_pool
        self.table = table
        self.streams = streams
        self.ops = ops
        self.probe: Probe | None = None
        self._num_abandoned = 0  # batches up to this number do nothing any more
        self.graphs: DecodeGraphs | None = None
        self._device = table.page_table.device

    def write_pages(self, row: int, first_page_idx: int, pages: Sequence[int]) -> None:
        """Map part of a row to pages, on the scheduler's stream."""
        self.streams.enqueue(
            SCHEDULER, partial(self.table.write_row_pages, row, first_page_idx, tuple(pages))
        )

    def write_tokens(self, row: int, start: int, key: bytes) -> None:
        """Put tokens into a row of the token pool, on the scheduler's stream."""
        self.streams.enqueue(SCHEDULER, partial(self.table.write_tokens, row, start, bytes(key)))

    def launch(self, batch: Batch) -> Result:
        """Hand a batch to the engine's stream, behind every table write handed over so far.

        Returns: its result, to be collected when the batch is processed.
        """
        result, inputs = Result(), _inputs_of(batch)
        self.streams.wait(ENGINE, self.streams.record(SCHEDULER))
        self.streams.enqueue(ENGINE, partial(self._run, inputs, result))
        result.event = self.streams.record(ENGINE)
        return result

    def collect(self, result: Result) -> list[int]:
        """Wait for a batch and return one token per request; a chunk's is meaningless."""
        self.streams.synchronize(result.event)
        assert result.tokens is not None
        tokens: list[int] = result.tokens.tolist()
        return tokens

    def abandon(self, number: int) -> None:
        """Drop the batches up to a number: one that has not begun will do nothing.

        Table writes from now on come after those that have begun, which may still read their rows.
        """
        self._num_abandoned = number
        self.streams.wait(SCHEDULER, self.streams.record(ENGINE))

    def _run(self, inputs: _Inputs, result: Result) -> None:
        """Run a batch. Everything it reads, it reads now."""
        if inputs.number <= self._num_abandoned:
            return
        extend_lens = np.subtract(inputs.device_lens, inputs.cached_lens)
        token_rows = self._to_device(np.repeat(inputs.rows, extend_lens))
        spans = zip(inputs.cached_lens, inputs.device_lens, strict=True)
        positions = self._to_device(np.concatenate([np.arange(start, end) for start, end in spans]))
        input_ids = self.table.token_pool[token_rows, positions].long()
        out_loc = self.table.page_table[token_rows, positions]
        attn = AttentionBatch(
            page_table=self.table.page_table,
            rows=self._to_device(np.asarray(inputs.rows, dtype=np.int32)),
            q_starts=self._to_device(np.concatenate([[0], np.cumsum(extend_lens)]).astype(np.int32)),
            kv_lens=self._to_device(np.asarray(inputs.device_lens, dtype=np.int32)),
        )
        logits = self._forward(input_ids, positions, out_loc, attn, is_decode=int(extend_lens.max()) == 1)
        if self.probe is not None:
            self.probe(self._executed(inputs, input_ids))
        tokens = sample(logits, inputs.choices, self.ops)
        self._write_sampled(inputs, tokens)
        result.tokens = self._to_host(tokens)

    def _forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_loc: torch.Tensor,
        attn: AttentionBatch,
        is_decode: bool,
    ) -> torch.Tensor:
        if self.graphs is None or not is_decode or self.graphs.size_for(attn.num_reqs) is None:
            return self.model.forward(input_ids, positions, out_loc, self.kv_pool, attn)
        return self.graphs.forward(Inputs(input_ids, positions, out_loc, attn.rows, attn.kv_lens))

    def _write_sampled(self, inputs: _Inputs, tokens: torch.Tensor) -> None:
        """Put each sampled token where the next step reads it; a chunk samples nothing."""
        ends = [idx for idx, sampled in enumerate(inputs.sampled) if sampled]
        if not ends:
            return
        rows = self._to_device(np.asarray([inputs.rows[idx] for idx in ends]))
        positions = self._to_device(np.asarray([inputs.device_lens[idx] for idx in ends]))
        self.table.token_pool[rows, positions] = tokens[self._to_device(np.asarray(ends))].int()

    def _executed(self, inputs: _Inputs, input_ids: torch.Tensor) -> Execution:
        """Say what a batch has read from the device."""
        tokens: list[int] = input_ids.tolist()
        codes: list[int] | None = getattr(self.model, "last_codes", None)
        requests, start = [], 0
        for uid, row, cached_len, device_len in zip(
            inputs.uids, inputs.rows, inputs.cached_lens, inputs.device_lens, strict=True
        ):
            end = start + device_len - cached_len
            requests.append(
                ExecutedRequest(
                    uid=uid,
                    row=row,
                    cached_len=cached_len,
                    tokens=tuple(tokens[start:end]),
                    slots=tuple(self.table.page_table[row, :device_len].tolist()),
                    codes=None if codes is None else tuple(codes[start:end]),
                )
            )
            start = end
        return Execution(inputs.number, tuple(requests))

    def _to_device(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)

    def _to_host(self, tokens: torch.Tensor) -> torch.Tensor:
        if tokens.device.type == "cpu":
            return tokens
        host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        return host.copy_(tokens, non_blocking=True)


def _inputs_of(batch: Batch) -> _Inputs:
    entries = batch.entries
    return _Inputs(
        number=batch.number,
        uids=tuple(entry.req.uid for entry in entries),
        rows=tuple(entry.req.row for entry in entries),
        cached_lens=tuple(entry.cached_len for entry in entries),
        device_lens=tuple(entry.device_len for entry in entries),
        sampled=tuple(entry.sampled for entry in entries),
        choices=tuple(
            (entry.req.sampling, max(0, entry.device_len - entry.req.prompt_len)) for entry in entries
        ),
    )
