"""Shapes of models that are public, as their config.json has them: for the table, for tests, and before a folder is
there."""

from collections.abc import Mapping
from typing import Any, Final

from engine.fit.shape import ModelShape

_QWEN3: Final[Mapping[str, Any]] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
    "dtype": "bfloat16",
}

KNOWN_CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Qwen3-0.6B": {
        **_QWEN3,
        "hidden_size": 1_024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3_072,
        "tie_word_embeddings": True,
    },
    "Qwen3-1.7B": {
        **_QWEN3,
        "hidden_size": 2_048,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 6_144,
        "tie_word_embeddings": True,
    },
    "Qwen3-4B": {
        **_QWEN3,
        "hidden_size": 2_560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 9_728,
        "tie_word_embeddings": True,
    },
    "Qwen3-8B": {
        **_QWEN3,
        "hidden_size": 4_096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 12_288,
        "tie_word_embeddings": False,
    },
    "Qwen3-32B": {
        **_QWEN3,
        "hidden_size": 5_120,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "intermediate_size": 25_600,
        "tie_word_embeddings": False,
    },
    "Qwen3-30B-A3B": {
        **_QWEN3,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2_048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 6_144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "tie_word_embeddings": False,
    },
}


def known_shape(name: str) -> ModelShape:
    if name not in KNOWN_CONFIGS:
        raise ValueError(f"model: must be one of {', '.join(KNOWN_CONFIGS)}, got {name!r}")
    return ModelShape.of_config(KNOWN_CONFIGS[name])
