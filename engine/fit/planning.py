"""The plan of a job's trainer, from its spec.

Invariant: this module alone knows the defaults that today's trainers choose; the arithmetic receives a whole plan.
"""

from dataclasses import replace

from engine.fit.activations import affordable
from engine.fit.plan import (
    CHUNK_LOGITS_ON_A_CPU,
    CHUNK_TOKENS,
    DEVICES_PER_HOST,
    PROMPT_TOKENS,
    Division,
    Products,
    TrainerPlan,
    longest_tokens,
)
from engine.fit.shape import ModelShape
from engine.spec.job import JobSpec
from engine.spec.recipes import RECIPES


def plan_trainer(
    spec: JobSpec,
    shape: ModelShape,
    *,
    prompt_tokens: int = PROMPT_TOKENS,
    on_gpu: bool = True,
    teacher: ModelShape | None = None,
    devices_per_host: int = DEVICES_PER_HOST,
) -> TrainerPlan:
    """`teacher`: the one that the spec names."""
    assert (teacher is not None) == spec.algorithm.has_teacher, "a teacher's shape belongs to a spec that has one"
    trainer, num_devices = spec.trainer, max(spec.trainer_devices, 1)
    division = _division(spec, num_devices)
    has_copies = division == "fsdp" and trainer.shard_within == "node"
    unsaid: Products = "bfloat16" if on_gpu else "float32"
    plan = TrainerPlan(
        pass_tokens=max(trainer.micro_batch_tokens, longest_tokens(spec, shape, prompt_tokens=prompt_tokens)),
        chunk_tokens=CHUNK_TOKENS if on_gpu else max(CHUNK_LOGITS_ON_A_CPU // shape.vocab_size, 1),
        num_devices=num_devices,
        division=division,
        devices_per_host=devices_per_host if has_copies else None,
        sums_once=division == "fsdp" and trainer.gradient_sums == "update",  # unset: only where it fits
        sequence_parallel=trainer.sequence_parallel if num_devices > 1 else 1,
        products=trainer.compute_dtype or unsaid,
        activations=trainer.activations or "kept",
        moments=spec.optimizer.moments,
        offloads_moments=spec.optimizer.offload,
        lora_rank=trainer.lora_rank,
        has_reference=spec.algorithm.kl.coefficient > 0,
        has_critic=RECIPES[spec.algorithm.name].advantage == "critic",
        teacher=teacher,
    )
    return plan if trainer.activations else replace(plan, activations=affordable(shape, plan))


def _division(spec: JobSpec, num_devices: int) -> Division:
    if spec.trainer.backend == "torch":
        return "fsdp" if num_devices > 1 else "whole"
    return ("zero1", "zero2", "zero3")[spec.trainer.zero_stage - 1]
