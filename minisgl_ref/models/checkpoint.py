"""Weights from a folder: config.json and *.safetensors, single or sharded with an index.

Names and shapes are compared with what the config calls for before anything is read: a missing
tensor, one of another shape and one we would not use are each refused, for a decoder with a weight
left out still talks, wrongly.

This file never converts another format (`gguf.py` does) and never downloads anything.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from minisgl_ref.models.config import DecoderConfig, refuse
from minisgl_ref.models.transformer import DecoderWeights, LayerWeights

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
# Old checkpoints carry rope's frequencies, which the config already says.
IGNORED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")

Shape = tuple[int, ...]
Read = Callable[[str], torch.Tensor]


class Checkpoint:
    """The open safetensors files of one folder; tensors are read one by one, by name."""

    def __init__(self, folder: Path) -> None:
        """Open every file and read its header.

        Raises: ContractError if there are no weights, or a file is missing or cannot be read.
        """
        self.folder = folder
        self._file_of: dict[str, Any] = {}
        self._path_of: dict[str, Path] = {}
        for path in weight_files(folder):
            opened = _open(path)
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                self._file_of[name] = opened
                self._path_of[name] = path

    def shapes(self) -> dict[str, Shape]:
        """The shape of every tensor, from the headers."""
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._file_of.items()}

    def read(self, name: str) -> torch.Tensor:
        """One tensor as it is stored.

        Raises: ContractError if it cannot be read, is no floating-point tensor or is not finite.
        """
        got = {"tensor": name, "path": self._path_of[name]}
        try:
            tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        except Exception as error:  # the reader raises its own type, OSError or RuntimeError
            refuse("a tensor that can be read", {**got, "error": error})
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            refuse(
                "float weights of 16 bits or more",
                {**got, "dtype": tensor.dtype},
                "Quantization is not supported.",
            )
        if not bool(tensor.isfinite().all()):
            refuse("finite weights", got, "The file is damaged.")
        return tensor


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises: ContractError if the file is missing, unreadable, no JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        refuse(f"a file {path.name}", {"path": path.parent, "missing": path.name})
    except (OSError, ValueError) as error:  # ValueError: bad JSON or bad UTF-8
        refuse("a JSON file", {"path": path, "error": error})
    if not isinstance(value, dict):
        refuse("a JSON object", {"path": path, "found": type(value).__name__})
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights of a folder, in order of name.

    Raises: ContractError if there are none, or several and no index, or the index names a missing one.
    """
    if (folder / SINGLE_FILE).exists():
        return [folder / SINGLE_FILE]
    if (folder / INDEX_FILE).exists():
        return _indexed_files(folder)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        others = sorted(path.name for pattern in ("*.bin", "*.pth", "*.pt") for path in folder.glob(pattern))
        refuse(
            f"{SINGLE_FILE}, or {INDEX_FILE} with its files",
            {"path": folder, "safetensors": [path.name for path in found], "other_weights": others},
            "Pickled weights are not read." if others else "",
        )
    return found


def _indexed_files(folder: Path) -> list[Path]:
    weight_map = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        refuse(
            "weight_map: tensor name -> file name", {"path": folder / INDEX_FILE, "weight_map": weight_map}
        )
    names = sorted(set(weight_map.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        refuse("files beside the index", {"path": folder / INDEX_FILE, "files": outside})
    missing = [name for name in names if not (folder / name).exists()]
    if missing or not names:
        refuse("every file that the index names", {"path": folder, "missing": missing, "named": len(names)})
    return [folder / name for name in names]


def _open(path: Path) -> Any:
    from safetensors import safe_open

    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except Exception as error:  # SafetensorError, OSError: which one depends on what is damaged
        refuse("a readable safetensors file", {"path": path, "error": error}, "It may be truncated.")


def expected_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Name and shape of every tensor that the config calls for; matrices are [num_outputs, num_inputs]."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_heads * dim, config.num_kv_heads * dim
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    matrices = {
        "self_attn.q_proj": ((q_size, hidden), config.qkv_bias),
        "self_attn.k_proj": ((kv_size, hidden), config.qkv_bias),
        "self_attn.v_proj": ((kv_size, hidden), config.qkv_bias),
        "self_attn.o_proj": ((hidden, q_size), config.o_bias),
        "mlp.gate_proj": ((inner, hidden), config.mlp_bias),
        "mlp.up_proj": ((inner, hidden), config.mlp_bias),
        "mlp.down_proj": ((hidden, inner), config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": dim, "self_attn.k_norm": dim}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for name, (shape, has_bias) in matrices.items():
            shapes[f"{prefix}{name}.weight"] = shape
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = shape[:1]
        shapes |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
    return shapes


def check_tensors(config: DecoderConfig, found: Mapping[str, Shape], where: str) -> None:
    """Refuse weights that are not exactly those the config calls for.

    A stored head beside tied embeddings passes here; `assemble` compares the two.

    Raises: ContractError naming the tensors that are missing, of another shape, or left over.
    """
    expected = expected_tensors(config)
    missing = sorted(set(expected) - set(found))
    if missing:
        refuse("every tensor of the model", {"path": where, "missing": _some(missing)})
    wrong = {name: found[name] for name, shape in expected.items() if found[name] != shape}
    if wrong:
        name = sorted(wrong)[0]
        refuse(
            "tensors of the shapes that the config calls for",
            {
                "path": where,
                "tensor": name,
                "shape": wrong[name],
                "expected": expected[name],
                "wrong": len(wrong),
            },
        )
    allowed = {HEAD} if config.tie_embeddings else set()
    left = sorted(name for name in set(found) - set(expected) - allowed if not IGNORED.fullmatch(name))
    if left:
        refuse(
            "no tensors but those of the model",
            {"path": where, "unexpected": _some(left)},
            "The config does not say what they are for.",
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return f"[{shown}]" if len(names) <= 4 else f"[{shown}, and {len(names) - 4} more]"


def assemble(
    config: DecoderConfig, names: Mapping[str, Shape], read: Read, device: torch.device, where: str
) -> DecoderWeights:
    """Read the checked tensors in the config's dtype onto a device and join those of one input.

    Raises: ContractError if the embeddings are tied and the stored head differs from them.
    """

    def tensor(name: str) -> torch.Tensor:
        return read(name).to(device=device, dtype=config.dtype).contiguous()

    embedding = tensor(EMBEDDING)
    if config.tie_embeddings and HEAD in names and not torch.equal(tensor(HEAD), embedding):
        refuse(
            f"{HEAD} equal to {EMBEDDING}",
            {"path": where, "tie_word_embeddings": True},
            "The weights hold a head of their own; the config says there is none.",
        )
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_layer(config, f"model.layers.{layer}.", tensor) for layer in range(config.num_layers)),
        norm=tensor("model.norm.weight"),
        head=embedding if config.tie_embeddings else tensor(HEAD),
    )


def _layer(config: DecoderConfig, prefix: str, tensor: Read) -> LayerWeights:
    def joined(names: tuple[str, ...], part: str) -> torch.Tensor:
        return torch.cat([tensor(f"{prefix}{name}.{part}") for name in names])

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    return LayerWeights(
        input_norm=tensor(f"{prefix}input_layernorm.weight"),
        qkv=joined(qkv, "weight"),
        qkv_bias=joined(qkv, "bias") if config.qkv_bias else None,
        q_norm=tensor(f"{prefix}self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=tensor(f"{prefix}self_attn.k_norm.weight") if config.qk_norm else None,
        o=tensor(f"{prefix}self_attn.o_proj.weight"),
        o_bias=tensor(f"{prefix}self_attn.o_proj.bias") if config.o_bias else None,
        mlp_norm=tensor(f"{prefix}post_attention_layernorm.weight"),
        gate_up=joined(gate_up, "weight"),
        gate_up_bias=joined(gate_up, "bias") if config.mlp_bias else None,
        down=tensor(f"{prefix}mlp.down_proj.weight"),
        down_bias=tensor(f"{prefix}mlp.down_proj.bias") if config.mlp_bias else None,
    )
