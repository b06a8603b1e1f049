"""From a transformers config to a decoder's measures; what we cannot compute is refused by name.

A config carries settings that change every logit (a rope type, a soft cap, experts). One that is
silently ignored gives a model that still talks, wrongly. So each setting is either supported, or
neutral, or refused with its name and value before a weight is read.

This file never reads weights (`load.py` does) and never downloads anything.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from minisgl_kernels import rope_parameters
from minisgl_ref.models.base import ModelConfig
from minisgl_spec.errors import ContractError

OPERATION = "load_model"

# model_type -> the one architecture of it that we compute
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# rope type -> the settings that are its own
ROPE_SETTINGS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            "factor",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "original_max_position_embeddings",
            "truncate",
        }
    ),
}

# Settings of other models that change logits -> the values at which they change nothing.
FOREIGN_SETTINGS: dict[str, tuple[object, ...]] = {
    "quantization_config": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "moe_intermediate_size": (None, 0),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "query_pre_attn_scalar": (None,),
    "attention_multiplier": (None,),
    "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "logits_scaling": (None, 1.0),
    "logit_scale": (None, 1.0),
    "use_qk_norm": (None, False),
    "qk_layernorm": (None, False),
    "no_rope_layers": (None, []),
    "no_rope_layer_interval": (None, 0),
    "attention_chunk_size": (None,),
    "attention_sinks": (None, False),
    "partial_rotary_factor": (None, 1.0),
    "alibi": (None, False),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "cross_attention_hidden_size": (None,),
    "auto_map": (None,),
}

LAYER_KINDS = ("full_attention", "sliding_attention")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class DecoderConfig(ModelConfig):
    """A dense Llama, Mistral, Qwen2 or Qwen3 decoder.

    sliding_windows:  per layer, how many tokens a query sees counting its own, or None for all.
    inv_freq:         [head_dim / 2] radians per position of each rotated pair.
    rope_scaling:     factor on the rotated q and k (1 but for yarn).
    qkv_bias, o_bias, mlp_bias, qk_norm, tie_embeddings: which tensors the weights have.
    """

    model_type: str
    intermediate_size: int
    rms_norm_eps: float
    inv_freq: tuple[float, ...]
    rope_scaling: float
    sliding_windows: tuple[int | None, ...]
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_embeddings: bool


def refuse(need: str, got: Mapping[str, object], advice: str = "") -> NoReturn:
    """Raise the ContractError of a model that cannot be loaded."""
    raise ContractError(OPERATION, need, got, advice)


def check_declared(settings: Mapping[str, Any], where: str) -> None:
    """Refuse a raw config (config.json) whose model or settings we do not compute.

    Raises: ContractError with the setting's name and value and `where` it was read.
    """
    model_type = settings.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        refuse(
            f"model_type in {_listed(ARCHITECTURES)}",
            {"model_type": model_type, "architectures": settings.get("architectures"), "path": where},
            "Only these dense decoders are computed here; mixtures of experts are not.",
        )
    declared = settings.get("architectures")
    if declared and declared != [ARCHITECTURES[model_type]]:
        refuse(f"architectures == [{ARCHITECTURES[model_type]}]", {"architectures": declared, "path": where})
    for name, neutral in FOREIGN_SETTINGS.items():
        value = settings.get(name)
        if value not in neutral:
            refuse(f"{name} in {list(neutral)}", {name: value, "path": where}, "It would change every logit.")


def decoder_config(
    config: Any, dtype: torch.dtype | None = None, eos_ids: Iterable[int] | None = None, where: str = "config"
) -> DecoderConfig:
    """Take a decoder's measures from a transformers config.

    Args:
        config:   a transformers LlamaConfig, MistralConfig, Qwen2Config or Qwen3Config.
        dtype:    of weights, activations and KV; the config's own, else float32, if None.
        eos_ids:  tokens that end a sequence; the config's eos_token_id if None.
        where:    names the config in messages.

    Raises: ContractError for every setting that is not supported, by name and value.
    """
    check_declared(config.to_dict(), where)
    num_layers = _positive(config, "num_hidden_layers", where)
    num_heads = _positive(config, "num_attention_heads", where)
    num_kv_heads = _positive(config, "num_key_value_heads", where)
    vocab_size = _positive(config, "vocab_size", where)
    _check_heads(num_heads, num_kv_heads, where)
    _check_activation(config, where)
    inv_freq, rope_scaling = _rope(config, where)
    is_llama, is_qwen2, is_qwen3 = (config.model_type == name for name in ("llama", "qwen2", "qwen3"))
    attention_bias = (is_llama or is_qwen3) and bool(config.attention_bias)
    return DecoderConfig(
        vocab_size=vocab_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, num_heads, where),
        hidden_size=_positive(config, "hidden_size", where),
        max_position=_positive(config, "max_position_embeddings", where),
        eos_ids=check_eos_ids(
            _as_ids(config.eos_token_id) if eos_ids is None else eos_ids, vocab_size, where
        ),
        dtype=_dtype(config, dtype, where),
        model_type=config.model_type,
        intermediate_size=_positive(config, "intermediate_size", where),
        rms_norm_eps=_epsilon(config, where),
        inv_freq=inv_freq,
        rope_scaling=rope_scaling,
        sliding_windows=_sliding_windows(config, num_layers, where),
        qkv_bias=is_qwen2 or attention_bias,
        o_bias=attention_bias,
        mlp_bias=is_llama and bool(config.mlp_bias),
        qk_norm=is_qwen3,
        tie_embeddings=bool(config.tie_word_embeddings),
    )


def check_eos_ids(eos_ids: Iterable[int], vocab_size: int, where: str) -> tuple[int, ...]:
    """The ids once each and in ascending order; refused if one is no token of the vocabulary."""
    ordered = tuple(sorted(set(eos_ids)))
    wrong = [token for token in ordered if not 0 <= token < vocab_size]
    if wrong:
        refuse(
            "every eos_token_id in 0:vocab_size",
            {"eos_token_id": wrong, "vocab_size": vocab_size, "path": where},
        )
    return ordered


def _as_ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def _listed(names: Iterable[str]) -> str:
    return "{" + ", ".join(sorted(names)) + "}"


def _positive(config: Any, name: str, where: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        refuse(f"{name} >= 1, an integer", {name: value, "path": where})
    return value


def _epsilon(config: Any, where: str) -> float:
    value = config.rms_norm_eps
    if not isinstance(value, (int, float)) or not 0 < value < 1:
        refuse("0 < rms_norm_eps < 1", {"rms_norm_eps": value, "path": where})
    return float(value)


def _check_heads(num_heads: int, num_kv_heads: int, where: str) -> None:
    if num_heads % num_kv_heads:
        refuse(
            "num_attention_heads to be a multiple of num_key_value_heads",
            {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads, "path": where},
        )


def _head_dim(config: Any, num_heads: int, where: str) -> int:
    head_dim = getattr(config, "head_dim", None)
    if head_dim is None:
        head_dim = config.hidden_size // num_heads
    if not isinstance(head_dim, int) or head_dim < 2 or head_dim % 2:
        refuse("an even head_dim >= 2 (rope rotates pairs)", {"head_dim": head_dim, "path": where})
    return head_dim


def _dtype(config: Any, dtype: torch.dtype | None, where: str) -> torch.dtype:
    chosen = dtype if dtype is not None else getattr(config, "dtype", None)
    chosen = torch.float32 if chosen is None else chosen
    if chosen not in DTYPES:
        refuse(f"dtype in {_listed(map(str, DTYPES))}", {"dtype": chosen, "path": where})
    return chosen


def _check_activation(config: Any, where: str) -> None:
    if config.hidden_act not in ("silu", "swish"):
        refuse("hidden_act == silu", {"hidden_act": config.hidden_act, "path": where})


def _rope(config: Any, where: str) -> tuple[tuple[float, ...], float]:
    settings = dict(getattr(config, "rope_parameters", None) or {})
    try:
        inv_freq, scaling = rope_parameters(config)
    except ContractError as error:
        refuse(error.need, {**error.got, "path": where})
    common = {"rope_type", "rope_theta", "type", "partial_rotary_factor"}
    known = ROPE_SETTINGS[settings.get("rope_type", "default")] | common
    foreign = {name: value for name, value in settings.items() if name not in known and value is not None}
    if foreign:
        refuse(f"no rope settings but {_listed(known)}", {**foreign, "path": where})
    return tuple(inv_freq.tolist()), float(scaling)


def _sliding_windows(config: Any, num_layers: int, where: str) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    declared = getattr(config, "layer_types", None)
    kinds = _layer_kinds(config.model_type, window, declared, num_layers)
    got = {"layer_types": declared, "sliding_window": window, "model_type": config.model_type, "path": where}
    if window is not None and (not isinstance(window, int) or window < 1):
        refuse("sliding_window >= 1 or none", got)
    if len(kinds) != num_layers or set(kinds) - set(LAYER_KINDS) or declared not in (None, kinds):
        refuse(f"layer_types: {num_layers} of {_listed(LAYER_KINDS)} that fit the model", got)
    if ("sliding_attention" in kinds and window is None) or (
        config.model_type == "llama" and window is not None
    ):
        refuse("sliding_window given only where layers slide", got)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _layer_kinds(
    model_type: str, window: int | None, declared: list[str] | None, num_layers: int
) -> list[str]:
    # Qwen says it layer by layer, Mistral for all layers at once, and Llama never slides.
    if model_type in ("qwen2", "qwen3") and declared is not None:
        return list(declared)
    slides = model_type == "mistral" and window is not None
    return ["sliding_attention" if slides else "full_attention"] * num_layers
