"""What cannot be computed or read is refused when a model is loaded, with the path and the value.

A setting that is ignored in silence changes every logit; a damaged folder must say what is damaged.
Guide: tests/README.md
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisgl_ref.models.load import load
from minisgl_spec.errors import BackendUnavailable, ContractError

from .tiny_models import edit_config, judge

LLAMA = "llama untied, own head_dim"
BASES = {
    "llama": LLAMA,
    "qwen2": "qwen2 tied",
    "qwen3": "qwen3 tied, own head_dim",
    "mistral": "mistral tied, no window",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in BASES}
    for name, folder in folders.items():
        judge(BASES[name]).save_pretrained(folder)
    return folders


@pytest.fixture
def folder(saved: dict[str, Path], tmp_path: Path) -> Path:
    """A sound Llama folder of the test's own."""
    return Path(shutil.copytree(saved["llama"], tmp_path / "model"))


def refusal(path: Path | str, **arguments: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        load(path, **arguments)
    return caught.value


SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"model_type": "mixtral"}, "model_type=mixtral"),
    ("llama", {"model_type": "gpt2"}, "model_type=gpt2"),
    ("llama", {"model_type": None}, "model_type=None"),
    ("llama", {"model_type": ["llama"]}, "model_type=['llama']"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    ("qwen3", {"num_experts": 8}, "num_experts=8"),
    ("mistral", {"num_local_experts": 8}, "num_local_experts=8"),
    ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "'quant_method': 'gptq'"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act=gelu"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "rope_type=dynamic",
    ),
    ("llama", {"rope_scaling": {"type": "longrope"}, "rope_parameters": None}, "longrope"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
    (
        "qwen2",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}},
        "mrope_section=[2, 2, 2]",
    ),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
    ("llama", {"residual_multiplier": 0.2}, "residual_multiplier=0.2"),
    ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
    ("qwen3", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window=None"),
    ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
    ("llama", {"sliding_window": 8}, "sliding_window=8"),
    ("mistral", {"sliding_window": 0}, "sliding_window=0"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
    ("llama", {"num_key_value_heads": 0}, "num_key_value_heads=0"),
    ("llama", {"head_dim": 15}, "15"),
    ("llama", {"vocab_size": "many"}, "many"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers=0"),
    ("llama", {"rms_norm_eps": 0.0}, "rms_norm_eps=0.0"),
    ("llama", {"dtype": "float64"}, "torch.float64"),
    ("llama", {"auto_map": {"AutoModelForCausalLM": "own.Model"}}, "own.Model"),
]


@pytest.mark.parametrize(("base", "changes", "shown"), SETTINGS, ids=lambda value: str(value)[:60])
def test_a_setting_we_do_not_compute_is_refused_by_name(
    base: str, changes: dict[str, Any], shown: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    """The refusal shows the setting, its value and where it was read. (issue: unsupported settings)"""
    model = Path(shutil.copytree(saved[base], tmp_path / "model"))
    edit_config(model, **changes)

    error = refusal(model)

    assert error.operation == "load_model"
    assert shown in str(error)
    assert str(model / "config.json") in str(error)


def remove(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda model: (model / name).write_text(text)


def replace_by_folder(name: str) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        (model / name).unlink()
        (model / name).mkdir()

    return change


def truncate(name: str, size: int) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        content = (model / name).read_bytes()
        (model / name).write_bytes(content[:size])

    return change


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def rewrite(model: Path) -> None:
        weights = load_file(model / "model.safetensors")
        change(weights)
        save_file(weights, model / "model.safetensors")

    return rewrite


def index(weight_map: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        (model / "model.safetensors").rename(model / "part-1.safetensors")
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return change


NORM = "model.norm.weight"
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (remove("config.json"), "missing=config.json"),
    "config is no JSON": (write("config.json", "{"), "config.json, error=Expecting property name"),
    "config is a list": (write("config.json", "[]"), "found=list"),
    "config is a folder": (replace_by_folder("config.json"), "Is a directory"),
    "no weights": (remove("model.safetensors"), "safetensors=[]"),
    "weights are a folder": (replace_by_folder("model.safetensors"), "model.safetensors, error="),
    "weights empty": (truncate("model.safetensors", 0), "model.safetensors, error="),
    "weights cut in the header": (truncate("model.safetensors", 100), "model.safetensors, error="),
    "weights cut in a tensor": (truncate("model.safetensors", -100), "model.safetensors, error="),
    "weights are text": (write("model.safetensors", "hello, hello, hello"), "model.safetensors, error="),
    "a tensor is missing": (tensors(lambda found: found.pop(NORM)), f"missing=[{NORM}]"),
    "a tensor has another shape": (
        tensors(lambda found: found.update({Q_PROJ: torch.zeros(48, 64)})),
        f"tensor={Q_PROJ}, shape=(48, 64), expected=(64, 48)",
    ),
    "a tensor too many": (
        tensors(lambda found: found.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})),
        "unexpected=[model.layers.0.self_attn.q_proj.bias]",
    ),
    "a tensor is not finite": (
        tensors(lambda found: found.update({NORM: torch.full((48,), torch.inf)})),
        f"tensor={NORM}",
    ),
    "a tensor is of integers": (
        tensors(lambda found: found.update({NORM: torch.ones(48, dtype=torch.int8)})),
        f"tensor={NORM}",
    ),
    "the index names a missing file": (
        index({NORM: "part-1.safetensors", Q_PROJ: "part-2.safetensors"}),
        "missing=['part-2.safetensors']",
    ),
    "the index leaves the folder": (index({NORM: "../part.safetensors"}), "files=['../part.safetensors']"),
    "the index has no map": (index(None), "weight_map=None"),
    "the index is empty": (index({}), "named=0"),
    "the tokenizer is no JSON": (write("tokenizer.json", "{"), "need a readable tokenizer"),
    "the generation config is no JSON": (write("generation_config.json", "{"), "generation_config.json"),
    "eos is no token": (
        write("generation_config.json", '{"eos_token_id": [2, 61]}'),
        "eos_token_id=[61], vocab_size=61",
    ),
    "eos is no id": (write("generation_config.json", '{"eos_token_id": "end"}'), "eos_token_id=end"),
}


@pytest.mark.parametrize(("damage", "shown"), DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_folder_says_what_is_wrong_with_it(
    damage: Callable[[Path], object], shown: str, folder: Path
) -> None:
    """The refusal shows the path and what is wrong there. (issue: corrupt model folder)"""
    damage(folder)

    error = refusal(folder)

    assert error.operation == "load_model"
    assert shown in str(error)
    assert str(folder) in str(error)


def test_only_pickled_weights_are_refused(folder: Path) -> None:
    """A pickle can run code, so it is named and not read."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    assert str(refusal(folder)) == (
        "load_model: need model.safetensors, or model.safetensors.index.json with its files; "
        f"got path={folder}, safetensors=[], other_weights=['pytorch_model.bin']. "
        "Pickled weights are not read."
    )


def test_a_head_of_its_own_beside_tied_embeddings_is_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    """If the config ties the embeddings, a stored head must be the embeddings."""
    model = Path(shutil.copytree(saved["qwen2"], tmp_path / "model"))
    tensors(lambda found: found.update({"lm_head.weight": torch.zeros(61, 48)}))(model)

    assert str(refusal(model)) == (
        "load_model: need lm_head.weight equal to model.embed_tokens.weight; "
        f"got path={model}, tie_word_embeddings=True. "
        "The weights hold a head of their own; the config says there is none."
    )


@pytest.mark.parametrize("name", ["nowhere", "organisation/model"])
def test_a_path_that_does_not_exist_is_refused(name: str) -> None:
    """A name of a hub is a path that does not exist: nothing is downloaded."""
    assert str(refusal(name)) == (
        f"load_model: need a model folder or a GGUF file; got path={name}. "
        "No such path; nothing is downloaded."
    )


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    """A lone safetensors file lacks its config."""
    (tmp_path / "model.safetensors").write_bytes(b"")

    assert "It is neither." in str(refusal(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, "int4"])
def test_a_dtype_we_do_not_compute_in_is_refused(dtype: torch.dtype | str, folder: Path) -> None:
    """Only float32, bfloat16 and float16 are computed in."""
    assert f"dtype={dtype}" in str(refusal(folder, dtype=dtype))


def test_an_unknown_device_is_refused(folder: Path) -> None:
    """A device is named as torch names it."""
    assert "device=abacus" in str(refusal(folder, device="abacus"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_this_machine_lacks_is_unavailable(folder: Path) -> None:
    """No model falls back to another device in silence."""
    with pytest.raises(BackendUnavailable, match="torch sees no CUDA device"):
        load(folder, device="cuda")


def test_an_unknown_backend_is_refused(folder: Path) -> None:
    """A backend is asked for by name and never replaced by another."""
    with pytest.raises((ContractError, BackendUnavailable), match="abacus"):
        load(folder, backend="abacus")
