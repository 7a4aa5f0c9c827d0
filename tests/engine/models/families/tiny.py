"""Small random models of every family, saved as transformers saves them."""

from pathlib import Path
from typing import Any, Final

import torch

BOTH: Final = ("llama", "qwen2", "qwen2-windows", "qwen3", "qwen3-windows", "qwen3-yarn", "mistral", "mistral-windows")
"""Variants that the decoder supports too."""
WINDOW: Final = 5

COMMON: Final[dict[str, Any]] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 3,
    "pad_token_id": 0,
}

# Settings of a family or of its published models, such as windows or tied tables.
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "llama": {"head_dim": 8},
    "llama-biases": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2-windows": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "qwen3-windows": {"head_dim": 8, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3-yarn": {
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 4.0,
            "original_max_position_embeddings": 40,
        },
    },
    "mistral": {"head_dim": 8, "sliding_window": None},
    "mistral-windows": {"head_dim": 8, "sliding_window": WINDOW},
    "glm4": {"head_dim": 8},
    "olmo2": {},
    "phi3": {"sliding_window": None},
    "phi3-windows": {"sliding_window": WINDOW},
}


def configuration(variant: str, **changed: Any) -> Any:
    from transformers import CONFIG_MAPPING

    settings = COMMON | VARIANTS[variant] | changed
    if "head_dim" in settings:  # given for COMMON's width, and scaled with it
        settings["head_dim"] = settings["head_dim"] * settings["hidden_size"] // COMMON["hidden_size"]
    return CONFIG_MAPPING[variant.partition("-")[0]](**settings)


def save_tiny(folder: Path, variant: str, *, dtype: torch.dtype = torch.float32, **changed: Any) -> Path:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(configuration(variant, **changed))  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # so that each of them matters
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    model.to(dtype).save_pretrained(folder)
    return folder
