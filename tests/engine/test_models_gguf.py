"""A GGUF file is converted once, exactly, into a cache outside the tree, or refused with its path.

The files are written here with the `gguf` package: a tiny Llama in float32, with a tokenizer of letters.
Guide: tests/README.md
"""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from minisgl_ref.models.gguf import cache_folder
from minisgl_ref.models.load import load
from minisgl_spec.errors import ContractError

from .tiny_models import PagedRunner, judge, one_thread, random_ids  # noqa: F401

PLAIN = "llama untied, own head_dim"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
}
SPECIAL = ["<unk>", "<s>", "</s>"]
TEXT = ["ab", *string.ascii_letters, *string.digits[:5]]
EPSILON = 2.0**-17  # exact in float32, as GGUF keeps it
WithWriter = Callable[[gguf.GGUFWriter], object]


def gguf_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def pairs_side_by_side(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF keeps the two halves of a rotated pair next to each other, in q and k of a Llama."""
    outputs, inputs = weight.shape
    return weight.reshape(heads, 2, outputs // heads // 2, inputs).swapaxes(1, 2).reshape(outputs, inputs)


def write_gguf(path: Path, architecture: str = "llama", more: WithWriter = lambda writer: None) -> Any:
    """Write a tiny Llama as GGUF and return the same model as transformers has it."""
    model = judge(PLAIN)
    config = model.config
    config.rms_norm_eps = EPSILON
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(config.vocab_size)
    writer.add_name("tiny")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(SPECIAL + TEXT)
    writer.add_token_merges(["a b"])
    writer.add_token_types([3] * len(SPECIAL) + [1] * len(TEXT))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    more(writer)
    for name, weight in model.named_parameters():
        values = weight.detach().numpy()
        if "q_proj" in name:
            values = pairs_side_by_side(values, config.num_attention_heads)
        if "k_proj" in name:
            values = pairs_side_by_side(values, config.num_key_value_heads)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


def refusal(path: Path) -> str:
    with pytest.raises(ContractError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_gguf_model_is_the_model_it_was_written_from(tmp_path: Path, cache: Path) -> None:
    """Float32 weights come back exactly; the second load takes the conversion. (issue: GGUF)"""
    model = write_gguf(tmp_path / "tiny.gguf")
    model.save_pretrained(tmp_path / "folder")
    ids = random_ids(20, seed=5)
    right, _ = load(tmp_path / "folder")

    first, tokenizer = load(tmp_path / "tiny.gguf")
    converted = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    second, _ = load(tmp_path / "tiny.gguf")

    expected = PagedRunner(right, 1).step({0: ids})
    assert torch.equal(PagedRunner(first, 1).step({0: ids}), expected)
    assert torch.equal(PagedRunner(second, 1).step({0: ids}), expected)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == converted
    assert len(converted) == 1
    assert first.config.eos_ids == (2,)
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_another_file_of_the_same_name_is_converted_anew(tmp_path: Path, cache: Path) -> None:
    """The cache knows a file by name, size, time and digest. (issue: GGUF)"""
    write_gguf(tmp_path / "tiny.gguf")
    load(tmp_path / "tiny.gguf")
    write_gguf(tmp_path / "tiny.gguf", more=lambda writer: writer.add_author("somebody"))

    load(tmp_path / "tiny.gguf")

    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        (lambda writer: writer.add_expert_count(8), "llama.expert_count=8"),
        (lambda writer: writer.add_sliding_window(16), "llama.attention.sliding_window=16"),
        (lambda writer: writer.add_rope_scaling_factor(4.0), "llama.rope.scaling.factor=4.0"),
        (
            lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(8, dtype=np.float32)),
            "in_file=22, in_model=21",
        ),
    ],
)
def test_what_the_conversion_would_drop_is_refused(
    more: WithWriter, shown: str, tmp_path: Path, cache: Path
) -> None:
    """transformers ignores metadata and tensors it does not know; they would change every logit."""
    write_gguf(tmp_path / "tiny.gguf", more=more)

    assert shown in refusal(tmp_path / "tiny.gguf")
    assert not cache.exists()


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    """A GGUF of a model that we do not compute is refused before its weights are read."""
    write_gguf(tmp_path / "tiny.gguf", architecture="gpt2")

    assert "gpt2" in refusal(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("size", [0, 3, 60, 4000, -2000])
def test_a_damaged_gguf_is_refused(size: int, tmp_path: Path, cache: Path) -> None:
    """A file cut anywhere is refused with its path, and nothing is left in the cache."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:size])

    assert refusal(path).startswith("load_model: need a ")
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The refusal names the folder and what to set."""
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "cache").write_text("in the way")

    with pytest.raises(ContractError, match=r"Set XDG_CACHE_HOME\.$"):
        load(tmp_path / "tiny.gguf")
