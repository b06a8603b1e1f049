"""Loading a folder: shards, dtypes, end-of-sequence ids, tokenizers; and what importing the models costs.

Guide: tests/README.md
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Words
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from minisgl_ref.models.load import load
from minisgl_ref.tokenizer import Tokenizer
from minisgl_spec.errors import ContractError

from .tiny_models import PagedRunner, judge, one_thread, random_ids  # noqa: F401

IDS = random_ids(20, seed=5)
CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</s>{% endfor %}<assistant>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound folder of a tied Qwen2, without a tokenizer."""
    judge("qwen2 tied").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def byte_tokenizer(chat_template: str | None = None) -> Any:
    """One token per byte of UTF-8, and two special ones: <s> is 256, </s> is 257."""
    alphabet = sorted(ByteLevel.alphabet())
    words = Words(BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    words.pre_tokenizer = ByteLevel(add_prefix_space=False)
    words.decoder = ByteLevelDecoder()
    maker: Any = PreTrainedTokenizerFast
    return maker(tokenizer_object=words, bos_token="<s>", eos_token="</s>", chat_template=chat_template)


def test_shards_and_one_file_are_the_same_model(folder: Path) -> None:
    """The index says which file holds which tensor. (issue: safetensors folder)"""
    right, _ = load(folder)
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    parts = {"part-1.safetensors": names[:9], "part-2.safetensors": names[9:]}
    for part, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / part)
    weight_map = {name: part for part, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()

    sharded, _ = load(folder)

    expected = PagedRunner(right, 1).step({0: IDS})
    assert torch.equal(PagedRunner(sharded, 1).step({0: IDS}), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_and_pool_take_the_dtype_asked_for_and_logits_are_float32(dtype: str, folder: Path) -> None:
    """A dtype's name or a torch dtype; the logits are float32 whatever it is. (08-numerics.md)"""
    model, _ = load(folder, dtype=dtype)

    runner = PagedRunner(model, 1)
    logits = runner.step({0: IDS})

    assert model.weights.head.dtype == runner.pool.pool.dtype == model.config.dtype == getattr(torch, dtype)
    assert logits.dtype == torch.float32
    assert bool(logits.isfinite().all())


def test_tied_embeddings_are_one_tensor(folder: Path) -> None:
    """A tied head takes no memory of its own."""
    model, _ = load(folder)

    assert model.weights.head is model.weights.embedding


def test_a_stored_head_equal_to_the_tied_embeddings_is_accepted(folder: Path) -> None:
    """Some exporters write the head though it is the embeddings."""
    weights = load_file(folder / "model.safetensors")
    copy = weights["model.embed_tokens.weight"].clone()
    save_file({**weights, "lm_head.weight": copy}, folder / "model.safetensors")

    model, _ = load(folder)

    assert model.weights.head is model.weights.embedding


def test_old_rope_buffers_in_a_checkpoint_are_ignored(folder: Path) -> None:
    """The config says the frequencies already."""
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file({**weights, name: torch.ones(6)}, folder / "model.safetensors")

    model, _ = load(folder)

    assert len(model.weights.layers) == 2


@pytest.mark.parametrize(
    ("declared", "expected"),
    [('{"eos_token_id": [7, 5]}', (5, 7)), ("{}", (3,)), ('{"eos_token_id": 9}', (9,))],
)
def test_the_generation_config_says_what_ends_a_sequence(
    declared: str, expected: tuple[int, ...], folder: Path
) -> None:
    """generation_config.json wins over config.json (here 3), as in transformers. (issue: EOS ids)"""
    (folder / "generation_config.json").write_text(declared)

    model, _ = load(folder)

    assert model.config.eos_ids == expected


def test_a_folder_without_a_tokenizer_loads_without_one(folder: Path) -> None:
    """Token ids are enough for the engine."""
    assert load(folder)[1] is None


def test_the_tokenizer_comes_from_the_same_folder(folder: Path) -> None:
    """Text goes to ids and back; its end-of-sequence token must be one of the model's. (issue: tokenizer)"""
    byte_tokenizer().save_pretrained(folder)

    with pytest.raises(ContractError, match=r"eos_token_id=\[257\], vocab_size=61"):
        load(folder)


def test_text_goes_to_ids_and_back() -> None:
    """Every byte is a token here."""
    tokenizer = Tokenizer(byte_tokenizer())

    ids = tokenizer.encode("Grüße")

    assert (len(ids), tokenizer.decode(ids), tokenizer.eos_ids) == (7, "Grüße", (257,))


def test_a_chat_ends_where_the_answer_begins() -> None:
    """The template is the model's own, and special tokens in it are single ids. (issue: chat)"""
    tokenizer = Tokenizer(byte_tokenizer(CHAT))

    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])

    assert tokenizer.has_chat_template
    assert ids.count(257) == 1
    assert tokenizer.decode(ids) == "<user>hi<assistant>"


def test_a_chat_without_a_template_is_refused() -> None:
    """There is no template that fits every model."""
    with pytest.raises(ContractError) as caught:
        Tokenizer(byte_tokenizer()).encode_chat([{"role": "user", "content": "hi"}])

    assert str(caught.value) == "encode_chat: need a model with a chat template; got messages=1."


def test_a_template_that_refuses_is_shown() -> None:
    """The template's own words are in the message."""
    tokenizer = Tokenizer(byte_tokenizer("{{ raise_exception('no system prompt') }}"))

    with pytest.raises(ContractError, match="error=no system prompt"):
        tokenizer.encode_chat([{"role": "system", "content": "be kind"}])


def test_a_stream_gives_out_whole_characters_only() -> None:
    """The pieces join to the whole text, and none holds half a character. (issue: streamed)"""
    tokenizer = Tokenizer(byte_tokenizer())
    stream = tokenizer.stream()

    pieces = [stream.push(token) for token in tokenizer.encode("Grüße 🙂!")]

    assert pieces == ["G", "r", "", "ü", "", "ß", "e", " ", "", "", "", "🙂", "!"]
    assert stream.finish() == ""


def test_a_stream_that_ends_in_half_a_character_gives_out_the_rest() -> None:
    """What is cut off by the length limit is shown as such at the end, as in the whole text."""
    tokenizer = Tokenizer(byte_tokenizer())
    stream = tokenizer.stream()
    ids = tokenizer.encode("aü")[:2]

    pieces = [*(stream.push(token) for token in ids), stream.finish()]

    assert "".join(pieces) == tokenizer.decode(ids) == "a\N{REPLACEMENT CHARACTER}"


def test_importing_the_loader_does_not_import_transformers() -> None:
    """transformers takes seconds to import, so only a load does. (issue: imports)"""
    code = (
        "import sys, minisgl_ref.models.load, minisgl_ref.models.tiny; print('transformers' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
