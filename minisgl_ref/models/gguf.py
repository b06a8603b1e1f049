"""A GGUF file, converted once to a folder of safetensors in a cache outside the tree.

transformers dequantises a GGUF file (slowly), so the converted model, its config and its tokenizer
are kept under the file's name, size, time and digest. A conversion appears whole or not at all: it is
written beside its place and renamed.

This file never trusts a conversion in silence: metadata that transformers would drop is refused by
name, and every tensor of the file must have become one of the model. It never downloads anything.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from minisgl_ref.models.config import check_declared, decoder_config, refuse
from minisgl_spec.errors import BackendUnavailable

MAGIC = b"GGUF"
# Raise when what a conversion writes changes, so that older ones are not used.
CONVERSION = 1
DIGEST_BYTES = 1 << 20

# Metadata below the architecture's name that the converted config or the shape checks cover.
KNOWN_METADATA = frozenset(
    {
        "context_length",
        "block_count",
        "feed_forward_length",
        "embedding_length",
        "rope.dimension_count",
        "rope.freq_base",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "vocab_size",
    }
)


def is_gguf(path: Path) -> bool:
    """Whether a path names a GGUF file, by its ending."""
    return path.suffix.lower() == ".gguf"


def cache_folder() -> Path:
    """Where conversions are kept: below $XDG_CACHE_HOME, else below ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "minisgl-ref" / "gguf"


def converted_folder(path: Path) -> Path:
    """The folder that holds this GGUF file as safetensors; converts it the first time.

    Raises: ContractError if it is no GGUF file or not a model we compute; BackendUnavailable if a
        package that the conversion needs is missing.
    Mutates: the cache folder.
    """
    folder = cache_folder() / _identity(path)
    if not (folder / "config.json").exists():
        _check_packages()
        _check_metadata(path)
        _convert(path, folder)
    return folder


def _identity(path: Path) -> str:
    try:
        status = path.stat()
        with path.open("rb") as file:
            head = file.read(DIGEST_BYTES)
            file.seek(max(0, status.st_size - DIGEST_BYTES))
            digest = hashlib.sha256(head + file.read())
    except OSError as error:
        refuse("a readable GGUF file", {"path": path, "error": error})
    if head[: len(MAGIC)] != MAGIC:
        refuse("a GGUF file", {"path": path, "first_bytes": head[: len(MAGIC)]}, "It may be damaged.")
    digest.update(f"{status.st_size} {status.st_mtime_ns} {CONVERSION}".encode())
    return f"{path.stem}-{digest.hexdigest()[:16]}"


def _check_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("transformers", "accelerate", "gguf") if find_spec(name) is None]
    if missing:
        raise BackendUnavailable("gguf", f"missing packages {missing}; pip install 'minisgl-ref[engine]'")


def _check_metadata(path: Path) -> None:
    fields = _reader(path).fields
    architecture = fields["general.architecture"].contents() if "general.architecture" in fields else None
    prefix = f"{architecture}."
    for name, field in fields.items():
        if not name.startswith(prefix) or name.removeprefix(prefix) in KNOWN_METADATA:
            continue
        if (value := field.contents()) not in (0, "none", False):
            refuse(
                "no metadata that would be dropped",
                {name: value, "path": path},
                "It would change every logit.",
            )


def _reader(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except Exception as error:  # the reader fails in its own ways on a damaged file
        refuse("a readable GGUF file", {"path": path, "error": error}, "It may be truncated.")


def _convert(path: Path, folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    where = {"gguf_file": path.name, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(str(path.parent), **where)
    except Exception as error:  # whatever transformers makes of metadata it does not know
        refuse("a GGUF model that transformers can read", {"path": path, "error": error})
    check_declared(config.to_dict(), str(path))
    decoder_config(config, where=str(path))
    try:
        model = AutoModelForCausalLM.from_pretrained(str(path.parent), dtype="float32", **where)
    except Exception as error:  # a tensor that is cut off or of an unknown kind
        refuse(
            "a GGUF model that transformers can read", {"path": path, "error": error}, "It may be truncated."
        )
    _check_all_converted(path, model)
    _write(path, model, folder)


def _check_all_converted(path: Path, model: Any) -> None:
    in_file = sorted(tensor.name for tensor in _reader(path).tensors)
    in_model = {name for name, _ in model.named_parameters()}
    if len(in_file) != len(in_model):
        refuse(
            "as many tensors in the file as in the model",
            {
                "path": path,
                "in_file": len(in_file),
                "in_model": len(in_model),
                "names": in_file[:4] + in_file[-4:],
            },
            "A tensor of the file would be dropped, or one of the model left random.",
        )


def _write(path: Path, model: Any, folder: Path) -> None:
    from transformers import AutoTokenizer

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    except OSError as error:
        refuse(
            "a cache folder that can be written",
            {"path": folder.parent, "error": error},
            "Set XDG_CACHE_HOME.",
        )
    try:
        _write_weights(model, place)
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(path.parent), gguf_file=path.name, local_files_only=True
            )
        except Exception as error:  # a vocabulary that transformers cannot convert
            refuse("a GGUF tokenizer that transformers can read", {"path": path, "error": error})
        tokenizer.save_pretrained(place)
        _rename(place, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _write_weights(model: Any, place: Path) -> None:
    # By hand: transformers saves no model that it marks as read from GGUF, though the weights are plain.
    from safetensors.torch import save_file

    tensors = {name: weight.detach().contiguous() for name, weight in model.named_parameters()}
    save_file(tensors, str(place / "model.safetensors"), metadata={"format": "pt"})
    settings = model.config.to_diff_dict() | {"model_type": model.config.model_type}
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(name, None)
    (place / "config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _rename(place: Path, folder: Path) -> None:
    try:
        place.rename(folder)
    except OSError:  # another process was first; its conversion is as good as ours
        if not (folder / "config.json").exists():
            raise
