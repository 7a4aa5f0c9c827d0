"""Whether gradients are summed over the ranks once an update, if the job's spec does not set it.

    micro_batch   every rank keeps its rows of the sum                 a sum for each micro-batch
    update        every rank keeps all of its own gradients, float32   one sum

Invariant: all ranks of a trainer choose the same, also where their devices differ.
"""

from typing import Final

import torch

from engine.fit.plan import CHUNK_TOKENS, PROMPT_TOKENS, TrainerPlan
from engine.fit.trainer import affords_one_sum
from engine.models.families.trained_model import ModelConfig, read_model_config
from engine.models.loading import resolve_model
from engine.training.fsdp.copies import Copies
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.activations import choose_activations, shape_of
from engine.training.step.models import needs_critic, needs_reference
from engine.training.step.scoring import dtype_of_products

FITS: Final = b"fits"


def sums_once(
    settings: TrainerSettings, config: ModelConfig, device: torch.device, copies: Copies, world: World
) -> bool:
    """Collective."""
    if settings.trainer.gradient_sums is not None:
        return settings.trainer.gradient_sums == "update"
    if device.type != "cuda":  # a CPU's memory is the host's, which others use too
        return False
    device_bytes = torch.cuda.get_device_properties(device).total_memory
    fits = affords_one_sum(shape_of(config), plan_of(settings, config, device, copies), device_bytes)
    return all(each == FITS for each in world.exchange(FITS if fits else b""))


def plan_of(settings: TrainerSettings, config: ModelConfig, device: torch.device, copies: Copies) -> TrainerPlan:
    trainer, algorithm = settings.trainer, settings.algorithm
    longest = min(PROMPT_TOKENS + settings.max_new_tokens, config.max_positions)
    products = dtype_of_products(trainer.compute_dtype, device)
    teacher = shape_of(read_model_config(resolve_model(algorithm.teacher.source))) if algorithm.has_teacher else None
    return TrainerPlan(
        pass_tokens=max(trainer.micro_batch_tokens, longest),
        chunk_tokens=CHUNK_TOKENS,
        num_devices=copies.num_copies * copies.num_shards,
        division="fsdp",
        devices_per_host=copies.num_shards,
        sequence_parallel=trainer.sequence_parallel,
        products="bfloat16" if products == torch.bfloat16 else "float32",
        activations=choose_activations(settings, config, device),
        moments=settings.optimizer.moments,
        offloads_moments=settings.optimizer.offload,
        lora_rank=trainer.lora_rank,
        has_reference=needs_reference(algorithm),
        has_critic=needs_critic(algorithm),
        teacher=teacher,
    )
