"""rope_parameters against transformers: default, linear, llama3 and yarn, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from minisgl_kernels import rope_parameters
from minisgl_kernels.contract import gamma, unit_roundoff
from minisgl_spec.errors import ContractError

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
}
SIZES: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 4}


@pytest.mark.parametrize("head_dim", [8, 64, 128])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 10_000.0},
        {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0},
        LLAMA3,
        YARN,
        {**YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False},
        {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
        {**YARN, "attention_factor": 1.5},
    ],
)
def test_frequencies_are_those_of_transformers(rope: dict[str, Any], head_dim: int) -> None:
    """Within eight roundings of float32, of config object and dict alike; the factor on q and k is equal."""
    config = LlamaConfig(
        **SIZES, head_dim=head_dim, rope_parameters=dict(rope), max_position_embeddings=131_072
    )
    expected = LlamaRotaryEmbedding(config)

    inv_freq, attention_scaling = rope_parameters(config)

    bound = gamma(8, unit_roundoff(torch.float32)) * expected.inv_freq.abs()
    assert ((inv_freq - expected.inv_freq).abs() <= bound).all()
    assert attention_scaling == expected.attention_scaling
    assert torch.equal(inv_freq, rope_parameters(config.to_dict())[0])


def test_the_default_frequencies_are_bitwise_those_of_transformers() -> None:
    """Models were trained with these numbers, so they are part of the weights."""
    config = LlamaConfig(**SIZES)

    assert torch.equal(rope_parameters(config)[0], LlamaRotaryEmbedding(config).inv_freq)


def test_the_older_form_of_a_config_means_the_same() -> None:
    """rope_scaling with rope_theta beside it, and `type` for `rope_type`."""
    old = {
        **SIZES,
        "rope_theta": 20_000.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    new = {**SIZES, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 20_000.0}}

    assert torch.equal(rope_parameters(old)[0], rope_parameters(new)[0])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**SIZES, "rope_parameters": {"rope_type": "longrope"}},
            "rope_parameters: need rope_type in default, linear, llama3, yarn; got rope_type=longrope.",
        ),
        (
            {**SIZES, "partial_rotary_factor": 0.5},
            "rope_parameters: need partial_rotary_factor == 1; got partial_rotary_factor=0.5.",
        ),
        (
            {**SIZES, "rope_parameters": {"rope_type": "linear"}},
            "rope_parameters: need factor a number > 0; got factor=None, rope_type=linear.",
        ),
        (
            {"head_dim": 7},
            (
                "rope_parameters: need an even head_dim >= 2; "
                "got head_dim=7, hidden_size=None, num_attention_heads=None."
            ),
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    """A setting that is silently ignored would give a model that talks, wrongly."""
    with pytest.raises(ContractError) as refusal:
        rope_parameters(config)

    assert str(refusal.value) == message
