"""Every family we compute, against transformers without a cache: logits within a derived bound, tokens equal.

Ours runs in chunks through shuffled pages of a pool whose unwritten slots are NaN. The bound counts
roundings (`tiny_models.logit_bound`); a last test shows that it is tight enough to see a small mistake.
Guide: tests/README.md
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minisgl_kernels import backends
from minisgl_ref.models.load import load
from minisgl_ref.models.transformer import Decoder

from .tiny_models import CASES, PagedRunner, greedy, judge, judge_logits, logit_bound, one_thread, random_ids  # noqa: F401

CHUNKS = (7, 1, 20, 12)
IDS = random_ids(sum(CHUNKS), seed=5)
TIE = 1e-4  # two best logits closer than this would be a matter of rounding; these prompts meet none
PROMPTS = (random_ids(9, seed=1), random_ids(17, seed=2), random_ids(2, seed=3))


@dataclass(frozen=True)
class Pair:
    """The same weights twice: transformers' model and ours, loaded from the folder it was saved to."""

    judge: Any
    ours: Decoder
    bound: float


@pytest.fixture(scope="module", params=list(CASES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("model")
    model = judge(request.param)
    model.save_pretrained(folder)
    ours, _ = load(folder)
    return Pair(model, ours, logit_bound(model, ours.config, IDS))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def test_logits_are_those_of_transformers_within_the_bound(pair: Pair) -> None:
    """In chunks through shuffled pages, each chunk's last logits are transformers'. (08-numerics.md)"""
    ends = torch.tensor(CHUNKS).cumsum(0) - 1

    ours = PagedRunner(pair.ours, 1).chunked(0, IDS, CHUNKS)

    assert ours.dtype == torch.float32
    assert distance(ours, judge_logits(pair.judge, IDS)[ends]) <= pair.bound


@pytest.mark.parametrize("page_size", [1, 4])
def test_greedy_tokens_are_those_of_transformers(pair: Pair, page_size: int) -> None:
    """A decoded batch yields the tokens that transformers picks, each without a cache. (08-numerics.md)"""
    answers = greedy(pair.ours, PROMPTS, steps=10, page_size=page_size)

    judged = [
        judge_logits(pair.judge, [*prompt, *answer])[len(prompt) - 1 : -1]
        for prompt, answer in zip(PROMPTS, answers, strict=True)
    ]
    best, second = torch.cat(judged).topk(2).values.unbind(1)
    assert float((best - second).min()) > TIE
    assert answers == [logits.argmax(-1).tolist() for logits in judged]


def test_chunks_pages_and_company_change_no_bit(pair: Pair) -> None:
    """A request's logits are the same to the last bit, however they came about. (08-numerics.md)"""
    alone = PagedRunner(pair.ours, 1, page_size=1).step({0: IDS})

    chunked = PagedRunner(pair.ours, 1, page_size=16).chunked(0, IDS, CHUNKS)[-1:]
    company = PagedRunner(pair.ours, 3).step({2: PROMPTS[0], 0: IDS, 1: PROMPTS[1]})[1:2]

    assert torch.equal(alone, chunked)
    assert torch.equal(alone, company)


def test_forward_writes_only_to_out_loc(pair: Pair) -> None:
    """A step fills the slots of out_loc in every layer and no other slot. (01-pages-and-slots.md)"""
    runner = PagedRunner(pair.ours, 2)

    runner.step({1: PROMPTS[0]})

    written = ~runner.pool.pool.flatten(2, 3).isnan().flatten(3).any(-1)
    slots = runner.page_table[1, : len(PROMPTS[0])].sort().values.tolist()
    assert written.all((0, 1)).nonzero().flatten().tolist() == slots
    assert written.any(0).any(0).nonzero().flatten().tolist() == slots


@pytest.mark.parametrize(
    ("case", "mistake"),
    [
        ("llama yarn rope", {"rope_scaling": 1.0}),
        ("qwen2 untied, upper layers slide", {"sliding_windows": (None, 7, 7)}),
        ("mistral slides, untied", {"sliding_windows": (4, 4)}),
        ("llama untied, own head_dim", {"rms_norm_eps": 1e-4}),
    ],
)
def test_the_bound_sees_a_small_mistake(case: str, mistake: dict[str, Any], tmp_path: Path) -> None:
    """A window that is off by one, a scaling left out or a wrong epsilon exceeds the bound."""
    model = judge(case)
    model.save_pretrained(tmp_path)
    right, _ = load(tmp_path)
    wrong = Decoder(replace(right.config, **mistake), right.weights, backends.get("torch"))

    logits = PagedRunner(wrong, 1).step({0: IDS})

    assert distance(logits, judge_logits(model, IDS)[-1:]) > logit_bound(model, right.config, IDS)
