"""What a trainer's layers save for the backward pass, if the job's spec does not set it.

The gradients are the same bit for bit: the choice trades memory for a third more arithmetic.
"""

import torch

from engine.fit.activations import affordable
from engine.fit.plan import PROMPT_TOKENS, TrainerPlan
from engine.fit.shape import ModelShape
from engine.models.decoder import Activations
from engine.models.families.settings import FamilyConfig
from engine.models.families.trained_model import ModelConfig
from engine.training.settings import TrainerSettings
from engine.training.step.models import needs_critic
from engine.training.step.scoring import dtype_of_products


def choose_activations(settings: TrainerSettings, config: ModelConfig, device: torch.device) -> Activations:
    trainer = settings.trainer
    if trainer.activations is not None:
        return trainer.activations
    longest = min(PROMPT_TOKENS + settings.max_new_tokens, config.max_positions)
    products = dtype_of_products(trainer.compute_dtype, device)
    plan = TrainerPlan(
        pass_tokens=max(trainer.micro_batch_tokens, longest),
        chunk_tokens=1,  # ignores the head, which layers do not affect
        num_devices=trainer.sequence_parallel,
        division="whole" if trainer.sequence_parallel == 1 else "fsdp",
        sequence_parallel=trainer.sequence_parallel,
        products="bfloat16" if products == torch.bfloat16 else "float32",
        has_critic=needs_critic(settings.algorithm),
    )
    return affordable(shape_of(config), plan)


def shape_of(config: ModelConfig) -> ModelShape:
    if isinstance(config, FamilyConfig):
        return config.shape
    mixture = config.mixture
    return ModelShape(
        vocab_size=config.vocab_size,
        width=config.width,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=config.mlp_width,
        tied=config.tied,
        stored_bytes=config.dtype.itemsize,
        max_positions=config.max_positions,
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        num_experts=0 if mixture is None else mixture.num_experts,
        experts_per_token=0 if mixture is None else mixture.chosen,
        expert_width=0 if mixture is None else mixture.expert_width,
        num_mixtures=0 if mixture is None else len(mixture.layers),
    )
