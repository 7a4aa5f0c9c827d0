"""How much arithmetic a step is, and how short it can be on a device that is known.

Invariants:
- every answer is taken to be as long as the job allows, since their lengths are unknown;
- the time is a bound from below: products at the rate that the maker states, every byte read once.
"""

from dataclasses import dataclass
from typing import Final

from engine.fit.need import GB
from engine.fit.plan import PROMPT_TOKENS, TrainerPlan, longest_tokens
from engine.fit.planning import plan_trainer
from engine.fit.replica import ReplicaPlan, kv_bytes_of_token
from engine.fit.shape import ModelShape
from engine.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """By its maker's data sheet."""

    name: str
    memory_bytes: int
    flops_per_s: float
    """Dense products in bfloat16."""
    bytes_per_s: float


DEVICES: Final = (
    Device(name="A100", memory_bytes=80 * GB, flops_per_s=312e12, bytes_per_s=2.039e12),
    Device(name="H100", memory_bytes=80 * GB, flops_per_s=989e12, bytes_per_s=3.35e12),
    Device(name="H200", memory_bytes=141 * GB, flops_per_s=989e12, bytes_per_s=4.8e12),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    training_flops: float
    """Of all devices together."""
    generation_flops: float
    generation_bytes: float
    """Weights and keys and values that decoding reads, of all replicas together."""


def forward_flops(shape: ModelShape, *, num_tokens: int, length: int) -> float:
    """tokens · (2 · active weights + N · 2·A·length): a token attends to half of its sequence on average, which costs a
    product with keys and one with values."""
    return num_tokens * (2.0 * shape.num_active_weights + shape.num_layers * 2.0 * shape.attention_width * length)


def training_flops(shape: ModelShape, plan: TrainerPlan, *, num_tokens: int, length: int) -> float:
    """Forward, and backward twice that; forward once more where layers are recomputed; the reference and the teacher
    forward; all again for a critic, with one more forward for its values."""
    passes = 3 + plan.recomputes
    passes += plan.has_reference + plan.has_critic * (passes + 1)
    teacher = 0.0 if plan.teacher is None else forward_flops(plan.teacher, num_tokens=num_tokens, length=length)
    return passes * forward_flops(shape, num_tokens=num_tokens, length=length) + teacher


def step_work(
    spec: JobSpec, shape: ModelShape, *, prompt_tokens: int = PROMPT_TOKENS, teacher: ModelShape | None = None
) -> StepWork:
    length = longest_tokens(spec, shape, prompt_tokens=prompt_tokens)
    plan = plan_trainer(spec, shape, prompt_tokens=prompt_tokens, teacher=teacher)
    replica = ReplicaPlan.of_spec(spec, shape, prompt_tokens=prompt_tokens)
    num_tokens = spec.trajectories_per_step * length
    num_rows = replica.max_batch
    if spec.rollout.kv_tokens:  # else there is room for all, or vLLM takes the free memory, which is unknown here
        num_rows = min(num_rows, max(replica.kv_tokens // length, 1))
    num_forwards = -(-spec.trajectories_per_step // num_rows) * min(spec.rollout.max_new_tokens, length)
    trained = spec.training.passes * training_flops(shape, plan, num_tokens=num_tokens, length=length)
    if spec.training.mini_batches * spec.training.passes > 1:  # log-probs of every token at the step's beginning
        trained += forward_flops(shape, num_tokens=num_tokens, length=length)
    read_kv = num_tokens * length / 2 * kv_bytes_of_token(shape)
    return StepWork(
        training_flops=trained,
        generation_flops=forward_flops(shape, num_tokens=num_tokens, length=length),
        generation_bytes=num_forwards * float(shape.num_active_weights * shape.stored_bytes) + read_kv,
    )


def least_training_s(work: StepWork, device: Device, *, num_devices: int) -> float:
    return work.training_flops / (device.flops_per_s * num_devices)


def least_generation_s(work: StepWork, device: Device, *, num_replicas: int) -> float:
    """Whichever takes longer: products, or reading."""
    products_s = work.generation_flops / (device.flops_per_s * num_replicas)
    return max(products_s, work.generation_bytes / (device.bytes_per_s * num_replicas))
