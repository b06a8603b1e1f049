"""Graphs for decode, with a fake that records: batches are padded to a captured size, and it shows nowhere.

The recorder keeps the work and runs it again at a replay, as a CUDA graph would, into the same result tensor.
Guide: tests/README.md
"""

from __future__ import annotations

import pytest
import torch

from minisgl_ref import EngineConfig
from minisgl_ref.build import build_scheduler, choose_backend
from minisgl_ref.core import SamplingParams
from minisgl_ref.engine.graph import DecodeGraphs, Recorder, Replay, Work, sizes_up_to
from minisgl_ref.models.tiny import tiny_llama
from minisgl_ref.scheduler.scheduler import Scheduler, drain
from minisgl_spec.errors import ContractError

CONFIG = EngineConfig(page_size=2, num_pages=64, num_rows=6, max_seq_len=32, backend="torch")
PROMPTS = [tuple(range(2, 2 + size)) for size in (9, 3, 12, 5, 1)]
SIZES = (1, 2, 4)


class FakeRecorder(Recorder):
    """Counts what is recorded and replayed, by number of requests."""

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.replayed: list[int] = []

    def record(self, work: Work) -> Replay:
        result = work()
        size = result.shape[0]
        self.recorded.append(size)

        def replay() -> torch.Tensor:
            self.replayed.append(size)
            return result.copy_(work())

        return replay


def scheduler_with(recorder: Recorder | None) -> Scheduler:
    """A tiny Llama over a pool of NaN, its decode steps recorded or not."""
    ops = choose_backend(CONFIG.backend)
    scheduler = build_scheduler(tiny_llama("torch"), CONFIG, ops, fill=float("nan"))
    engine = scheduler.engine
    if recorder is not None:
        engine.graphs = DecodeGraphs(engine.model, engine.kv_pool, engine.table, recorder, SIZES)
    return scheduler


def tokens_of(scheduler: Scheduler, num_prompts: int) -> dict[int, list[int]]:
    for uid, prompt in enumerate(PROMPTS[:num_prompts]):
        assert scheduler.submit(uid, prompt, SamplingParams(4 + uid, ignore_eos=True)) is None
    tokens: dict[int, list[int]] = {}
    for reply in drain(scheduler):
        if reply.token is not None:
            tokens.setdefault(reply.uid, []).append(reply.token)
    return tokens


@pytest.mark.parametrize("num_prompts", [1, 2, 3, 4, 5])
def test_padding_to_a_captured_size_changes_no_token(num_prompts: int) -> None:
    """Each batch goes to the smallest size that holds it; larger ones run as they are. (graph.py)"""
    recorder = FakeRecorder()

    found = tokens_of(scheduler_with(recorder), num_prompts)

    assert found == tokens_of(scheduler_with(None), num_prompts)
    assert recorder.replayed
    assert set(recorder.recorded) <= set(SIZES)
    assert len(set(recorder.recorded)) == len(recorder.recorded)


def test_padding_changes_no_bit_and_writes_the_dummy_slot_only() -> None:
    """Three requests in a graph of four: the logits of three, and a pool that differs in no slot."""
    plain, graphed = scheduler_with(None), scheduler_with(FakeRecorder())
    logits: list[list[torch.Tensor]] = []
    for scheduler in (plain, graphed):
        model, kept = scheduler.engine.model, []
        forward = scheduler.engine._forward

        def watched(*args: object, forward=forward, kept=kept, **kwargs: object) -> torch.Tensor:
            kept.append(forward(*args, **kwargs))
            kept[-1] = kept[-1].clone()
            return kept[-1]

        scheduler.engine._forward = watched
        tokens_of(scheduler, 3)
        logits.append(kept)
        assert model is scheduler.engine.model

    pools = [scheduler.engine.kv_pool for scheduler in (plain, graphed)]
    assert all(map(torch.equal, *logits))
    for layer in range(2):
        for caches in (pool.k_cache for pool in pools), (pool.v_cache for pool in pools):
            one, other = (cache(layer)[: CONFIG.num_pages * CONFIG.page_size] for cache in caches)
            assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def test_all_sizes_are_recorded_at_once_the_largest_first() -> None:
    """Recording reads and writes padding alone: no slot but the dummy's page is written."""
    recorder = FakeRecorder()
    engine = scheduler_with(recorder).engine
    assert engine.graphs is not None

    engine.graphs.record_all()

    assert recorder.recorded == [4, 2, 1]
    assert engine.kv_pool.k_cache(0)[: CONFIG.num_pages * CONFIG.page_size].isnan().all()


@pytest.mark.parametrize(("num_reqs", "size"), [(0, None), (1, 1), (2, 2), (3, 4), (4, 4), (5, None)])
def test_a_batch_goes_to_the_smallest_size_that_holds_it(num_reqs: int, size: int | None) -> None:
    """None is larger than the largest, and none holds nothing."""
    graphs = scheduler_with(FakeRecorder()).engine.graphs
    assert graphs is not None

    assert graphs.size_for(num_reqs) == size


def test_sizes_end_with_the_number_of_rows() -> None:
    """1, 2, 4, every eighth, and all rows."""
    assert sizes_up_to(1) == (1,)
    assert sizes_up_to(6) == (1, 2, 4, 6)
    assert sizes_up_to(20) == (1, 2, 4, 8, 16, 20)


def test_graphs_are_refused_where_there_is_no_cuda_device() -> None:
    """The message shows device and backend."""
    with pytest.raises(ContractError) as refusal:
        EngineConfig(graph_sizes=(1, 2))

    assert refusal.value.got == {"graph_sizes": (1, 2), "device": "cpu", "backend": "None"}
