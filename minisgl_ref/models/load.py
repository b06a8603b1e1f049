"""A model and its tokenizer from a path: a folder of safetensors, or a GGUF file.

In order: the config is read and everything unsupported in it refused; the tensors' names and shapes
are checked against it; only then is a weight read.

This file never downloads: a path that does not exist is refused, whatever it names elsewhere.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from minisgl_kernels import backends
from minisgl_ref.models.checkpoint import CONFIG_FILE, Checkpoint, assemble, check_tensors, read_json
from minisgl_ref.models.config import DTYPES, check_declared, decoder_config, refuse
from minisgl_ref.models.gguf import converted_folder, is_gguf
from minisgl_ref.models.transformer import Decoder
from minisgl_ref.tokenizer import Tokenizer
from minisgl_spec.errors import BackendUnavailable

GENERATION_FILE = "generation_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def load(
    path: str | Path,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
    backend: str = "torch",
) -> tuple[Decoder, Tokenizer | None]:
    """Load a decoder and its tokenizer.

    Args:
        path:     a folder with config.json and *.safetensors, or a GGUF file.
        dtype:    of weights, activations and KV; the config's own if None.
        device:   where the weights go.
        backend:  whose kernels compute, see `minisgl_kernels.backends`.

    Returns: the model, and its tokenizer or None if the folder has none.

    Raises: ContractError if the place is missing or damaged or the model is not supported, with the
        path and what was wrong; BackendUnavailable if the backend cannot run here.
    Mutates: the cache folder, the first time a GGUF file is loaded.
    """
    ops = backends.get(backend)
    chosen = check_dtype(dtype)
    place = check_device(device)
    source = Path(path)
    if not source.exists():
        refuse("a model folder or a GGUF file", {"path": source}, "No such path; nothing is downloaded.")
    folder = converted_folder(source) if is_gguf(source) else source
    if not folder.is_dir():
        refuse("a model folder or a GGUF file", {"path": source}, "It is neither.")
    settings = read_json(folder / CONFIG_FILE)
    check_declared(settings, str(folder / CONFIG_FILE))
    config = _transformers_config(settings, folder)
    tokenizer = load_tokenizer(folder)
    eos_ids = declared_eos_ids(folder, config.eos_token_id, tokenizer)
    decoder = decoder_config(config, chosen, eos_ids, str(folder / CONFIG_FILE))
    checkpoint = Checkpoint(folder)
    shapes = checkpoint.shapes()
    check_tensors(decoder, shapes, str(folder))
    weights = assemble(decoder, shapes, checkpoint.read, place, str(folder))
    return Decoder(decoder, weights, ops), tokenizer


def check_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A torch dtype from itself or its name; None stays None.

    Raises: ContractError if it is not one we compute in.
    """
    chosen = DTYPE_NAMES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and chosen not in DTYPES:
        refuse(f"dtype in {sorted(DTYPE_NAMES)}", {"dtype": dtype})
    return chosen


def check_device(device: torch.device | str) -> torch.device:
    """A torch device from itself or its name.

    Raises: ContractError if there is no such kind; BackendUnavailable if this machine has none.
    """
    try:
        place = torch.device(device)
    except RuntimeError as error:
        refuse("the name of a torch device", {"device": device, "error": str(error).splitlines()[0]})
    if place.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable("cuda", "torch sees no CUDA device")
    return place


def _transformers_config(settings: dict[str, Any], folder: Path) -> Any:
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[settings["model_type"]].from_dict(dict(settings))
    except Exception as error:  # its validators raise several types of their own
        refuse("a config that transformers accepts", {"path": folder / CONFIG_FILE, "error": error})


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a model folder, or None if the folder has none.

    Raises: ContractError if there is one that cannot be read.
    """
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        read = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # every kind of tokenizer fails in its own way
        refuse("a readable tokenizer", {"path": folder, "error": error})
    return Tokenizer(read)


def declared_eos_ids(folder: Path, config_eos: object, tokenizer: Tokenizer | None) -> list[int]:
    """Token ids that end a sequence: the generation config's, else the config's; and the tokenizer's.

    Raises: ContractError if one is no integer or generation_config.json cannot be read.
    """
    declared = config_eos
    if (folder / GENERATION_FILE).exists():
        declared = read_json(folder / GENERATION_FILE).get("eos_token_id", config_eos)
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    wrong = [token for token in ids if not isinstance(token, int) or isinstance(token, bool)]
    if wrong:
        refuse("eos_token_id: an integer or a list of them", {"eos_token_id": declared, "path": folder})
    return [*ids, *(tokenizer.eos_ids if tokenizer is not None else ())]
