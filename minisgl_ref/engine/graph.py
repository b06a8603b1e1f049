"""Graphs for decode: one recorded launch instead of hundreds, for batches padded to a few sizes.

A decode batch is one token per request, so its work depends only on how many there are. Each captured size
has its own inputs, which stay where they are; a batch is copied into the smallest size that holds it, and
the rest is padding: token 0 of the dummy row at position 0, stored to the dummy slot, attending to itself.
What pads is never read by a request, and a row's bits do not depend on the batch, so the padding shows
nowhere.

This file never decides which requests run, and samples nothing: the graph ends at the logits.
Chapter: spec/07-overlap.md
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from minisgl_ref.engine.attention import AttentionBatch
from minisgl_spec.errors import BackendUnavailable, ContractError

if TYPE_CHECKING:
    from minisgl_ref.kvcache.mha_pool import MHAKVCache
    from minisgl_ref.models.base import Model
    from minisgl_ref.scheduler.table import TableManager

Work = Callable[[], torch.Tensor]
Replay = Callable[[], torch.Tensor]

WARM_UPS = 2  # runs before a capture: kernels are compiled and memory is found in them


class Recorder(ABC):
    """Records work once, to be launched again as a whole."""

    @abstractmethod
    def record(self, work: Work) -> Replay:
        """Run the work and return what runs it again; its result is always the same tensor."""


class CudaRecorder(Recorder):
    """CUDA graphs that share one memory pool: only one of them runs at a time."""

    def __init__(self, device: str) -> None:
        if not torch.cuda.is_available():
            raise BackendUnavailable("cuda", f"torch sees no CUDA device; got device={device}")
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None  # torch's handle, of the first graph

    def record(self, work: Work) -> Replay:
        """Capture the work on a stream of its own."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = work()
        self._pool = self._pool or graph.pool()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


@dataclass(frozen=True)
class Inputs:
    """What a decode step reads; one token per request.

    input_ids, positions:  [num_reqs] i64.
    out_loc, rows:         [num_reqs] i32.
    kv_lens:               [num_reqs] i32, device_len of each request.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    out_loc: torch.Tensor
    rows: torch.Tensor
    kv_lens: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them, in order."""
        return self.input_ids, self.positions, self.out_loc, self.rows, self.kv_lens


@dataclass(frozen=True)
class _Graph:
    inputs: Inputs
    replay: Replay


class DecodeGraphs:
    """Recorded decode steps of one model, by the number of requests.

    sizes:  requests of each graph, ascending.
    """

    def __init__(
        self,
        model: Model,
        kv_pool: MHAKVCache,
        table: TableManager,
        recorder: Recorder,
        sizes: Sequence[int],
    ) -> None:
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise ContractError("decode_graphs", "sizes ascending from at least 1", {"sizes": list(sizes)})
        self.sizes = tuple(sizes)
        self._model = model
        self._kv_pool = kv_pool
        self._table = table
        self._recorder = recorder
        self._graphs: dict[int, _Graph] = {}

    def size_for(self, num_reqs: int) -> int | None:
        """The smallest size that holds a batch; None if there is none."""
        return next((size for size in self.sizes if size >= num_reqs > 0), None)

    def record_all(self) -> None:
        """Record every size, the largest first, so that the others find their memory in its pool."""
        for size in reversed(self.sizes):
            self._graph(size)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Run a decode step through the graph of its size.

        Returns: logits [num_reqs, vocab_size], a view that the next step overwrites.
        Raises:  ContractError for a batch larger than every size.
        Mutates: the K and V of out_loc; the dummy slot.
        """
        num_reqs = inputs.rows.shape[0]
        size = self.size_for(num_reqs)
        if size is None:
            raise ContractError(
                "decode_graphs", "1 <= num_reqs <= max(sizes)", {"num_reqs": num_reqs, "sizes": self.sizes}
            )
        graph = self._graph(size)
        for kept, given, pad in zip(graph.inputs.tensors, inputs.tensors, self._padding, strict=True):
            kept[:num_reqs].copy_(given)
            kept[num_reqs:].fill_(pad)
        return graph.replay()[:num_reqs]

    @property
    def _padding(self) -> tuple[int, ...]:
        """Token, position, slot, row and length of a request that is none."""
        return 0, 0, self._table.dummy_slot, self._table.dummy_row, 1

    def _graph(self, size: int) -> _Graph:
        """The graph of a size; it is recorded over padding alone, so recording writes the dummy slot only."""
        if size not in self._graphs:
            inputs = self._padded_inputs(size)
            self._graphs[size] = _Graph(inputs, self._recorder.record(self._step(inputs)))
        return self._graphs[size]

    def _padded_inputs(self, size: int) -> Inputs:
        dtypes = (torch.int64, torch.int64, torch.int32, torch.int32, torch.int32)
        device = self._table.page_table.device
        return Inputs(
            *(
                torch.full((size,), pad, dtype=dtype, device=device)
                for pad, dtype in zip(self._padding, dtypes, strict=True)
            )
        )

    def _step(self, inputs: Inputs) -> Work:
        table = self._table.page_table
        size = inputs.rows.shape[0]
        attn = AttentionBatch(
            page_table=table,
            rows=inputs.rows,
            q_starts=torch.arange(size + 1, dtype=torch.int32, device=table.device),
            kv_lens=inputs.kv_lens,
        )

        def step() -> torch.Tensor:
            return self._model.forward(
                inputs.input_ids, inputs.positions, inputs.out_loc, self._kv_pool, attn
            )

        return step


def sizes_up_to(num_rows: int) -> tuple[int, ...]:
    """1, 2, 4, then every eighth, up to the number of rows."""
    return tuple(sorted({size for size in (1, 2, 4, *range(8, num_rows, 8)) if size < num_rows} | {num_rows}))
