"""A tiny random Llama, small enough to fuzz with: real kernels, real arithmetic, no download.

Its weights are drawn from a fixed seed at a scale where attention is neither flat nor fixed on one key,
so a wrong slot anywhere in the context usually changes the next token, and greedy text does not settle
into a loop. The same weights are available as a transformers model, which judges without a cache.

This file never reads or writes a file.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from typing import Any

import torch

from minisgl_kernels import backends
from minisgl_ref.models.checkpoint import assemble, check_tensors, expected_tensors
from minisgl_ref.models.config import DecoderConfig, decoder_config
from minisgl_ref.models.transformer import Decoder

SEED = 7
EOS_IDS = (1,)
SETTINGS: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": list(EOS_IDS),
    "architectures": ["LlamaForCausalLM"],
}
# Standard deviation of a matrix's outputs for inputs of standard deviation 1; elsewhere 1.
GAINS = {"q_proj": 3.0, "k_proj": 3.0, "v_proj": 2.0, "o_proj": 2.0, "lm_head": 4.0}
EMBEDDING_SCALE = 0.3  # below the layers' outputs, so that the context outweighs the last token


def tiny_llama(
    backend: str = "torch", seed: int = SEED, eos_ids: tuple[int, ...] = EOS_IDS, device: str = "cpu"
) -> Decoder:
    """The tiny Llama as our model: 2 layers, vocabulary 64, 512 positions, float32.

    Args:
        backend:  whose kernels compute.
        seed:     of the weights; the same seed gives the same weights everywhere.
        eos_ids:  tokens that end a sequence.
        device:   where the weights go.
    """
    config = decoder_config(_transformers_config(), torch.float32, eos_ids, "tiny llama")
    drawn = draw_weights(config, seed)
    shapes = {name: tuple(weight.shape) for name, weight in drawn.items()}
    check_tensors(config, shapes, "tiny llama")
    weights = assemble(config, shapes, drawn.__getitem__, torch.device(device), "tiny llama")
    return Decoder(config, weights, backends.get(backend))


def tiny_llama_judge(seed: int = SEED) -> Any:
    """The same weights as a transformers LlamaForCausalLM, to judge ours without a cache."""
    from transformers import LlamaForCausalLM

    settings = _transformers_config()
    with torch.random.fork_rng(devices=[]):  # it draws weights of its own first
        model: Any = LlamaForCausalLM(settings)
    model.load_state_dict(draw_weights(decoder_config(settings, torch.float32), seed))
    return model.eval()


def draw_weights(config: DecoderConfig, seed: int) -> dict[str, torch.Tensor]:
    """Random float32 weights for every tensor of a config, drawn in order of name.

    Norms are near 1, biases near 0, a matrix keeps the scale of its input but for GAINS.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, shape in sorted(expected_tensors(config).items()):
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 2:
            part = name.removesuffix(".weight").rpartition(".")[2]
            is_embedding = part == "embed_tokens"
            value = noise * (EMBEDDING_SCALE if is_embedding else GAINS.get(part, 1.0) / shape[1] ** 0.5)
        else:
            value = 0.1 * noise if name.endswith(".bias") else 1 + 0.1 * noise
        drawn[name] = value.to(torch.float32)
    return drawn


def _transformers_config() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**SETTINGS)
