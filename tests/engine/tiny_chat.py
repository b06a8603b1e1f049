"""What the tests of `LLM` and of the demo share: a byte-level tokenizer trained here, models that fit it.

A scripted model says what it is told, by position alone, so a test decides every output. The tiny Llama is
a folder with weights and tokenizer, as people have them.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from minisgl_ref.config import EngineConfig
from minisgl_ref.engine.attention import AttentionBatch
from minisgl_ref.kvcache.mha_pool import MHAKVCache
from minisgl_ref.llm import LLM
from minisgl_ref.models.base import ModelConfig
from minisgl_ref.tokenizer import Tokenizer
from minisgl_ref.trace import Recorder

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "the tree keeps what it has seen, and the lock keeps the tree",
    "naïve café, 日本語, und so weiter",
]
SPECIAL = ["<|im_start|>", "<|im_end|>"]
END = 1
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB_SIZE = 320
MAX_POSITION = 256


def train_tokenizer() -> Any:
    """A byte-level BPE of at most VOCAB_SIZE tokens with a ChatML template, as a transformers tokenizer."""
    from tokenizers import Tokenizer as Trained
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    trained = Trained(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(LINES, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, eos_token=SPECIAL[END])
    tokenizer.chat_template = CHATML
    return tokenizer


def tiny_tokenizer() -> Tokenizer:
    """The same, as the engine has it."""
    return Tokenizer(train_tokenizer())


def save_tiny_llama(folder: Path) -> Any:
    """Save a random Llama and the tokenizer to a folder; return the Llama, to judge with."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITION,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(settings)
        for weight in model.parameters():
            if weight.dim() == 2:
                torch.nn.init.normal_(weight, std=1.5 / weight.shape[1] ** 0.5)
    model.eval().save_pretrained(folder)
    train_tokenizer().save_pretrained(folder)
    return model


class ScriptedModel:
    """The token after position p is script[p + 1], whatever came before; at the end the script repeats.

    fails_at: which forward raises, counted from 1; then it works again.
    """

    def __init__(self, script: Sequence[int], fails_at: int = 0, error: type[Exception] = OSError) -> None:
        self.script = list(script)
        self.fails_at = fails_at
        self.error = error
        self.num_forwards = 0
        self.config = ModelConfig(
            vocab_size=VOCAB_SIZE,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=1,
            hidden_size=1,
            max_position=MAX_POSITION,
            eos_ids=(END,),
            dtype=torch.float32,
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_loc: torch.Tensor,
        kv_pool: MHAKVCache,
        attn: AttentionBatch,
    ) -> torch.Tensor:
        """Return logits that all but name the next token of the script."""
        self.num_forwards += 1
        if self.num_forwards == self.fails_at:
            raise self.error("the device has gone")
        logits = torch.zeros(attn.num_reqs, VOCAB_SIZE)
        for request, length in enumerate(attn.kv_lens.tolist()):
            logits[request, self.script[length % len(self.script)]] = 1.0
        return logits


def scripted(
    script: Sequence[int],
    *,
    fails_at: int = 0,
    error: type[Exception] = OSError,
    tokenizer: Tokenizer | None = None,
    recorder: Recorder | None = None,
    **config: Any,
) -> LLM:
    """An LLM whose outputs a test decides; the measures of its engine are small."""
    measures = {"page_size": 2, "num_pages": 40, "num_rows": 3, "token_budget": 8, "backend": "torch"}
    return LLM.from_model(
        ScriptedModel(script, fails_at, error), tokenizer, EngineConfig(**{**measures, **config}), recorder
    )


def is_untouched(llm: LLM) -> bool:
    """Whether no request is left: nothing in flight, every page free or evictable, every row free."""
    cache, table = llm.scheduler.cache, llm.scheduler.table
    is_whole = (cache.available_pages, len(table.free_rows)) == (cache.num_pages, table.num_rows)
    return is_whole and llm.scheduler.is_idle()
