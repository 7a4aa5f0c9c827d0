"""The decoder's own configuration of a shape, and small specs."""

from typing import Any

import torch

from engine.fit.shape import ModelShape
from engine.models.decoder import DecoderConfig
from engine.models.mixture import MixtureShape
from engine.spec.job import JobSpec

DTYPES = {4: torch.float32, 2: torch.bfloat16}


def decoder_config(shape: ModelShape) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=shape.vocab_size,
        width=shape.width,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        mlp_width=shape.mlp_width,
        max_positions=shape.max_positions,
        rope_theta=1e6,
        norm_eps=1e-6,
        tied=shape.tied,
        dtype=DTYPES[shape.stored_bytes],
        qkv_bias=shape.qkv_bias,
        qk_norm=shape.qk_norm,
        mixture=mixture_shape(shape),
    )


def mixture_shape(shape: ModelShape) -> MixtureShape | None:
    """The last layers are mixtures."""
    if not shape.num_mixtures:
        return None
    return MixtureShape(
        num_experts=shape.num_experts,
        chosen=shape.experts_per_token,
        expert_width=shape.expert_width,
        renormalised=True,
        layers=tuple(range(shape.num_dense, shape.num_layers)),
    )


def job(**parts: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate({"name": "t", **parts})
