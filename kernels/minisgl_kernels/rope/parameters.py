"""From a transformers config to the frequencies of its rotary embedding.

Pair i of a head turns by inv_freq[i] = theta ** (-2 i / head_dim) radians per position. Long-context
variants slow the slow pairs down: `linear` divides all by a factor, `llama3` only those that turn less
than a few times in the original context, `yarn` blends by how often a pair turns and scales q and k.
Models were trained with these numbers in float32, so they are computed in float32 as at training:
they are part of the weights, not an approximation.

This file never changes with the length of a sequence: `dynamic` and `longrope` do, and are refused by name.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from minisgl_spec.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

OPERATION = "rope_parameters"
DEFAULT_THETA = 10_000.0
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class HasToDict(Protocol):
    """A transformers config object."""

    def to_dict(self) -> dict[str, Any]:
        """Its settings as config.json has them."""


def rope_parameters(config: Mapping[str, Any] | HasToDict) -> tuple[Tensor, float]:
    """Compute how fast each pair of a head turns, and the factor on the rotated q and k.

    Args:
        config: a transformers config or its dict, with `rope_parameters` (or the older `rope_scaling` and
                `rope_theta`), and `head_dim` (or `hidden_size` and `num_attention_heads`).

    Returns:
        inv_freq:           [head_dim / 2] f32, radians per position.
        attention_scaling:  1 but for yarn.

    Raises: ContractError for another rope type, a partial rotation, an odd head_dim or a missing setting.
    """
    settings = dict(config) if isinstance(config, Mapping) else config.to_dict()
    rope = _rope_settings(settings)
    base = _base_frequencies(settings, rope)
    rope_type = rope["rope_type"]
    if rope_type == "linear":
        return base / _number(rope, "factor"), 1.0
    if rope_type == "llama3":
        return _llama3(base, rope), 1.0
    if rope_type == "yarn":
        return _yarn(base, rope, settings), _yarn_scaling(rope, settings)
    return base, 1.0


def _rope_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    rope = dict(settings.get("rope_parameters") or settings.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope.setdefault("rope_theta", settings.get("rope_theta") or DEFAULT_THETA)
    if rope["rope_type"] not in ROPE_TYPES:
        need = f"rope_type in {', '.join(ROPE_TYPES)}"
        raise ContractError(OPERATION, need, {"rope_type": rope["rope_type"]})
    fraction = rope.get("partial_rotary_factor") or settings.get("partial_rotary_factor") or 1.0
    if fraction != 1.0:
        raise ContractError(OPERATION, "partial_rotary_factor == 1", {"partial_rotary_factor": fraction})
    return rope


def _number(rope: Mapping[str, Any], name: str) -> float:
    value = rope.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ContractError(OPERATION, f"{name} a number > 0", {name: value, "rope_type": rope["rope_type"]})
    return value


def _head_dim(settings: Mapping[str, Any]) -> int:
    names = ("head_dim", "hidden_size", "num_attention_heads")
    head_dim, hidden_size, num_heads = (settings.get(name) for name in names)
    size = head_dim or (hidden_size // num_heads if hidden_size and num_heads else 0)
    if size < 2 or size % 2:
        raise ContractError(OPERATION, "an even head_dim >= 2", {name: settings.get(name) for name in names})
    return int(size)


def _base_frequencies(settings: Mapping[str, Any], rope: Mapping[str, Any]) -> Tensor:
    import torch

    head_dim = _head_dim(settings)
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return torch.tensor(1.0) / _number(rope, "rope_theta") ** exponents


def _llama3(base: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Keep pairs that turn often in the original context, slow the rare ones, blend between."""
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    wavelength = 2 * math.pi / base
    turns = _number(rope, "original_max_position_embeddings") / wavelength
    # turns < low: slowed; turns > high: kept; between: a linear blend. Equal factors leave no between.
    keep = ((turns - low) / (high - low)).clamp(0, 1) if high != low else (turns >= high).to(base.dtype)
    return (1 - keep) * base / _number(rope, "factor") + keep * base


def _yarn(base: Tensor, rope: Mapping[str, Any], settings: Mapping[str, Any]) -> Tensor:
    """Blend slowed and kept frequencies along the pairs, between two numbers of turns."""
    import torch

    pairs = base.shape[0]
    theta, original = _number(rope, "rope_theta"), _number(rope, "original_max_position_embeddings")

    def pair_that_turns(turns: float) -> float:
        return 2 * pairs * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = pair_that_turns(rope.get("beta_fast") or 32)
    last = pair_that_turns(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = last - first if last != first else 0.001
    slowed = ((torch.arange(pairs, dtype=torch.float32) - first) / width).clamp(0, 1)
    return base / _yarn_factor(rope, settings) * slowed + base * (1 - slowed)


def _yarn_factor(rope: Mapping[str, Any], settings: Mapping[str, Any]) -> float:
    if rope.get("factor") is not None:
        return _number(rope, "factor")
    original = _number(rope, "original_max_position_embeddings")
    return float(_number({**settings, **rope}, "max_position_embeddings") / original)


def _yarn_scaling(rope: Mapping[str, Any], settings: Mapping[str, Any]) -> float:
    """The factor on q and k: as given, else from the logarithm of the slow-down."""
    if rope.get("attention_factor") is not None:
        return _number(rope, "attention_factor")
    factor = _yarn_factor(rope, settings)

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, mscale_all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return growth(mscale) / growth(mscale_all_dim)
    return growth(1.0)
