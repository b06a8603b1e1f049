"""Tiny random models of every family, as transformers models and as folders, and a paged runner for ours.

The judge is transformers on whole sequences without a cache; ours always reads and writes through pages
that are dealt out in shuffled order, in a pool where unwritten slots hold NaN.
Guide: tests/README.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from minisgl_kernels import backends
from minisgl_kernels.contract import gamma, unit_roundoff
from minisgl_ref.engine.attention import AttentionBatch
from minisgl_ref.kvcache.mha_pool import MHAKVCache
from minisgl_ref.models.config import DecoderConfig
from minisgl_ref.models.transformer import Decoder

COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": 3,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
# name -> model_type and what differs from COMMON
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama untied, own head_dim": ("llama", {"tie_word_embeddings": False, "head_dim": 16}),
    "llama tied, all biases, linear rope": (
        "llama",
        {
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        },
    ),
    "llama one kv head, llama3 rope": ("llama", {"num_key_value_heads": 1, "rope_parameters": LLAMA3_ROPE}),
    "llama yarn rope": ("llama", {"head_dim": 16, "rope_parameters": YARN_ROPE}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 untied, upper layers slide": (
        "qwen2",
        {
            "tie_word_embeddings": False,
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
        },
    ),
    "qwen3 tied, own head_dim": ("qwen3", {"tie_word_embeddings": True, "head_dim": 24}),
    "qwen3 untied, bias, yarn, slides": (
        "qwen3",
        {
            "tie_word_embeddings": False,
            "head_dim": 16,
            "attention_bias": True,
            "rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16},
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "mistral slides, untied": (
        "mistral",
        {
            "tie_word_embeddings": False,
            "head_dim": 8,
            "sliding_window": 5,
            "rope_parameters": {"rope_theta": 1e6},
        },
    ),
    "mistral tied, no window": ("mistral", {"tie_word_embeddings": True, "sliding_window": None}),
}


def judge(case: str, seed: int = 0) -> Any:
    """A transformers model with random weights: norms near 1, biases not 0, logits far from flat."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, settings = CASES[case]
    config = AutoConfig.for_model(model_type, **{**COMMON, **settings})
    with torch.random.fork_rng(devices=[]):
        maker: Any = AutoModelForCausalLM
        model = maker.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 2:
                weight.copy_(noise * (1.5 / weight.shape[1] ** 0.5))
            else:
                weight.copy_(weight.round() + 0.2 * noise)  # a norm's ones and a bias's zeros
    return model.eval()


def edit_config(folder: Path, **changes: Any) -> None:
    """Change settings in a saved config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def judge_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[len(ids), vocab_size] from one forward without a cache."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits


def random_ids(length: int, seed: int, vocab_size: int = COMMON["vocab_size"]) -> list[int]:
    """Token ids drawn from a seed."""
    drawn: list[int] = torch.randint(
        vocab_size, (length,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return drawn


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """For a module that imports it: products this small only wait for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class PagedRunner:
    """Requests on rows of a page table whose pages are dealt out in shuffled order."""

    def __init__(
        self, model: Decoder, num_reqs: int, capacity: int = 64, page_size: int = 4, backend: str = "torch"
    ) -> None:
        config = model.config
        self.model = model
        pages_each = -(-capacity // page_size)
        self.pool = MHAKVCache(
            num_layers=config.num_layers,
            num_pages=num_reqs * pages_each,
            page_size=page_size,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=config.dtype,
            ops=backends.get(backend),
            fill=float("nan"),
        )
        order = torch.randperm(num_reqs * pages_each, generator=torch.Generator().manual_seed(page_size))
        slots = order.view(num_reqs, pages_each, 1) * page_size + torch.arange(page_size)
        dummy = torch.full((1, pages_each * page_size), self.pool.dummy_slot)
        self.page_table = torch.cat([slots.view(num_reqs, -1), dummy]).to(torch.int32)
        self.lengths = [0] * num_reqs

    def step(self, new_tokens: dict[int, Sequence[int]]) -> torch.Tensor:
        """Run one batch: tokens to append per row. Returns the logits of each row's last token."""
        rows = list(new_tokens)
        starts = {row: self.lengths[row] for row in rows}
        for row in rows:
            self.lengths[row] += len(new_tokens[row])
        counts = torch.tensor([0, *(len(new_tokens[row]) for row in rows)], dtype=torch.int32)
        positions = torch.cat([torch.arange(starts[row], self.lengths[row]) for row in rows])
        return self.model.forward(
            torch.tensor([token for row in rows for token in new_tokens[row]], dtype=torch.int32),
            positions.to(torch.int32),
            torch.cat([self.page_table[row, starts[row] : self.lengths[row]] for row in rows]),
            self.pool,
            AttentionBatch(
                page_table=self.page_table,
                rows=torch.tensor(rows, dtype=torch.int32),
                q_starts=counts.cumsum(0).to(torch.int32),
                kv_lens=torch.tensor([self.lengths[row] for row in rows], dtype=torch.int32),
            ),
        )

    def chunked(self, row: int, ids: Sequence[int], chunks: Sequence[int]) -> torch.Tensor:
        """Append ids to one row chunk by chunk; [num_chunks, vocab_size], the logits after each chunk."""
        ends = torch.tensor(chunks).cumsum(0).tolist()
        return torch.cat(
            [self.step({row: ids[end - size : end]}) for size, end in zip(chunks, ends, strict=True)]
        )


def greedy(model: Decoder, prompts: Sequence[Sequence[int]], steps: int, page_size: int) -> list[list[int]]:
    """Greedy tokens of several prompts: each prefilled in two chunks, then all decoded in one batch."""
    runner = PagedRunner(model, len(prompts), page_size=page_size)
    firsts = [
        runner.chunked(row, prompt, [len(prompt) // 2, len(prompt) - len(prompt) // 2])[-1:]
        for row, prompt in enumerate(prompts)
    ]
    tokens = [torch.cat(firsts).argmax(-1)]
    while len(tokens) < steps:
        tokens.append(runner.step({row: [int(token)] for row, token in enumerate(tokens[-1])}).argmax(-1))
    found: list[list[int]] = torch.stack(tokens, dim=1).tolist()
    return found


def logit_bound(model: Any, config: DecoderConfig, ids: Sequence[int]) -> float:
    """How far two float32 evaluations of the logits may be apart: 2 * gamma(roundings) * condition * scale.

    roundings: on the longest path from an embedding to a logit. A sum of n terms rounds n times at most,
        a norm n + 3, a softmax over n keys n + 3, rope 3, silu and the product 5, a residual 1.
    gamma(n) = n * u / (1 - n * u) bounds the relative error of n roundings of at most u = 2**-24.
    condition: how much larger a relative error of the embeddings is in the logits, measured in float64
        (at least 1); scale: the largest logit. Both evaluations round, hence 2.
    """
    n = len(ids)
    block = (config.hidden_size + 3) + config.hidden_size
    attention = block + (config.head_dim + 3) + 3 + config.head_dim + (n + 3) + n
    attention += config.num_heads * config.head_dim + 1
    mlp = block + 5 + config.intermediate_size + 1
    roundings = config.num_layers * (attention + mlp) + block
    condition, scale = _condition_and_scale(model, ids)
    return 2 * gamma(roundings, unit_roundoff(torch.float32)) * max(1.0, condition) * scale


def _condition_and_scale(model: Any, ids: Sequence[int]) -> tuple[float, float]:
    step = 1e-6
    precise = type(model)(model.config).double().eval()
    precise.load_state_dict(model.state_dict())
    with torch.no_grad():
        embedded = precise.get_input_embeddings()(torch.tensor([list(ids)]))
        signs = torch.randint(0, 2, embedded.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
        logits = precise(inputs_embeds=embedded, use_cache=False).logits
        moved = precise(inputs_embeds=embedded * (1 + step * signs), use_cache=False).logits
    scale = float(logits.abs().max())
    return float((moved - logits).abs().max()) / (step * scale), scale
