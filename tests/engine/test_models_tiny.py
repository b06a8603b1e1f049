"""The tiny Llama: always the same weights, judged by transformers, and text that a wrong slot would change.

Guide: tests/README.md
"""

from __future__ import annotations

import pytest
import torch

from minisgl_ref.models.tiny import EOS_IDS, tiny_llama, tiny_llama_judge

from .tiny_models import PagedRunner, greedy, judge_logits, logit_bound, one_thread, random_ids  # noqa: F401

PROMPTS = [random_ids(12, seed=seed, vocab_size=3 if seed % 2 else 64) for seed in range(8)]
STEPS = 40


@pytest.fixture(scope="module")
def answers() -> list[list[int]]:
    return greedy(tiny_llama(), PROMPTS, steps=STEPS, page_size=4)


def test_the_tiny_llama_is_what_its_name_says() -> None:
    """2 layers, vocabulary 64, grouped heads, float32. (issue: the tiny random Llama)"""
    config = tiny_llama().config

    assert (config.num_layers, config.vocab_size, config.num_heads, config.num_kv_heads) == (2, 64, 4, 2)
    assert (config.head_dim, config.max_position, config.dtype) == (16, 512, torch.float32)
    assert config.eos_ids == EOS_IDS
    assert config.tie_embeddings is False


def test_the_tiny_llama_is_the_same_every_time() -> None:
    """A seed fixes every weight, and drawing leaves torch's own generator alone."""
    torch.manual_seed(0)
    first = tiny_llama()
    tiny_llama_judge()
    drawn = torch.rand(1)

    torch.manual_seed(0)
    second = tiny_llama()

    assert torch.equal(first.weights.layers[1].down, second.weights.layers[1].down)
    assert torch.equal(drawn, (torch.manual_seed(0), torch.rand(1))[1])
    assert not torch.equal(first.weights.head, tiny_llama(seed=8).weights.head)


def test_the_judge_has_the_same_weights() -> None:
    """transformers' logits are ours, within the bound. (08-numerics.md)"""
    ours, theirs = tiny_llama(), tiny_llama_judge()

    logits = PagedRunner(ours, 1, page_size=3).chunked(0, PROMPTS[0], [5, 7])[-1]

    expected = judge_logits(theirs, PROMPTS[0])[-1]
    assert float((logits - expected).abs().max()) <= logit_bound(theirs, ours.config, PROMPTS[0])


def test_greedy_text_is_varied_and_free_of_ties(answers: list[list[int]]) -> None:
    """Greedy text uses most of the vocabulary, and the judge sees no two best logits within 1e-4."""
    judge = tiny_llama_judge()

    judged = torch.cat(
        [
            judge_logits(judge, [*prompt, *answer])[len(prompt) - 1 : -1]
            for prompt, answer in zip(PROMPTS, answers, strict=True)
        ]
    )

    best, second = judged.topk(2).values.unbind(1)
    assert judged.argmax(-1).tolist() == [token for answer in answers for token in answer]
    assert float((best - second).min()) > 1e-4
    assert len({token for answer in answers for token in answer}) >= 40
    assert min(len(set(answer)) for answer in answers) >= 8


@pytest.mark.parametrize("distance", [1, 8, 39])
def test_one_other_token_anywhere_often_changes_the_next(distance: int) -> None:
    """A model that ignored its context would hide a wrong slot: here one change in eight shows at once."""
    model = tiny_llama_judge()
    ids = torch.tensor([random_ids(40, seed=seed, vocab_size=64) for seed in range(256)])
    other = ids.clone()
    other[:, -1 - distance] = (other[:, -1 - distance] + 1) % 64

    with torch.no_grad():
        changed = model(ids).logits[:, -1].argmax(-1) != model(other).logits[:, -1].argmax(-1)

    assert float(changed.double().mean()) >= 0.125
