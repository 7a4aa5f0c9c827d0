"""How a trainer divides and computes: what of a spec, and of how its trainer is built, decides the memory.

Invariant: `of_spec` is the one place that knows what today's trainers do of their own accord; the arithmetic is given
everything.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from engine.fit.shape import ModelShape
from engine.spec.job import JobSpec
from engine.spec.recipes import RECIPES

Division = Literal["whole", "fsdp", "zero1", "zero2", "zero3"]
"""Whole: one device has everything. FSDP and ZeRO 3 divide weights, gradients and moments."""
Products = Literal["float32", "bfloat16"]
Moments = Literal["float32", "bfloat16", "float8"]
Activations = Literal["kept", "recomputed", "offloaded"]
"""Of a layer, until its backward pass: all; its input, from which the rest is computed again; that, on the host."""

# A spec bounds the answer, not the prompt before it, which is the environment's.
PROMPT_TOKENS: Final = 1_024
# engine/training/step/head.py makes logits of so many tokens at a time; on a CPU of as many as make so many logits.
CHUNK_TOKENS: Final = 2_048
CHUNK_LOGITS_ON_A_CPU: Final = 2**26
# A spec names no hosts; hosts for training have eight GPUs.
DEVICES_PER_HOST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPlan:
    pass_tokens: int
    """Of one forward and backward pass: a micro-batch, or a sequence that is longer than one."""
    chunk_tokens: int
    """Of which logits exist at a time."""
    num_devices: int = 1
    division: Division = "whole"
    devices_per_host: int | None = None
    """The most that a host has, if the devices of each host have a copy of everything. None: there is one copy."""
    sums_once: bool = False
    """Gradients are summed over the devices once an update, and not after each micro-batch."""
    sequence_parallel: int = 1
    """Devices that share the tokens of one pass."""
    products: Products = "bfloat16"
    activations: Activations = "kept"
    caches_casts: bool = False
    """Autocast keeps the bfloat16 copy of each weight from its first use to the end of the pass."""
    moments: Moments = "float32"
    offloads_moments: bool = False
    """They lie in the host's memory."""
    lora_rank: int = 0
    has_reference: bool = False
    has_critic: bool = False
    teacher: ModelShape | None = None
    """A second, frozen model with a shape of its own."""

    def __post_init__(self) -> None:
        assert self.num_devices % self.sequence_parallel == 0, "each group that shares a pass is whole"
        assert self.division != "whole" or self.num_devices == 1, "several devices divide something"
        assert self.division == "fsdp" or self.devices_per_host is None, "only FSDP has a copy on each host"
        assert self.division == "fsdp" or not self.sums_once, "only FSDP can sum gradients later"

    @classmethod
    def of_spec(
        cls,
        spec: JobSpec,
        shape: ModelShape,
        *,
        prompt_tokens: int = PROMPT_TOKENS,
        on_gpu: bool = True,
        teacher: ModelShape | None = None,
        devices_per_host: int = DEVICES_PER_HOST,
    ) -> Self:
        """`teacher`: the one that the spec names."""
        assert (teacher is not None) == spec.algorithm.has_teacher, "a teacher's shape belongs to a spec that has one"
        from engine.fit.activations import affordable  # which counts by this class

        trainer, num_devices = spec.trainer, max(spec.trainer_devices, 1)
        division = _division(spec, num_devices)
        has_copies = division == "fsdp" and trainer.shard_within == "node"
        unsaid: Products = "bfloat16" if on_gpu else "float32"
        plan = cls(
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

    @property
    def tokens(self) -> int:
        """Of a pass, on one device."""
        return -(-self.pass_tokens // self.sequence_parallel)

    @property
    def num_shards(self) -> int:
        """Devices that have a copy together: all, or of each host as many, at most what it has."""
        if self.devices_per_host is None:
            return self.num_devices
        return largest_even_share(self.num_devices, self.devices_per_host)

    @property
    def recomputes(self) -> bool:
        return self.activations != "kept"

    @property
    def product_bytes(self) -> int:
        return 4 if self.products == "float32" else 2

    @property
    def residual_bytes(self) -> int:
        """Of what goes from layer to layer. Autocast leaves it float32; FSDP's weights come as bfloat16, and it too."""
        return 2 if self.division == "fsdp" and self.products == "bfloat16" else 4

    @property
    def casts(self) -> bool:
        """Weights are float32 where they are multiplied, and rounded there."""
        return self.products == "bfloat16" and self.division != "fsdp"

    @property
    def num_trained_models(self) -> int:
        """Whose activations are there together: the losses of a micro-batch are taken before either goes backward."""
        return 2 if self.has_critic else 1


def largest_even_share(num_devices: int, devices_per_host: int) -> int:
    """Of each host, if all have as many of these devices."""
    return next(count for count in range(min(devices_per_host, num_devices), 0, -1) if num_devices % count == 0)


def longest_tokens(spec: JobSpec, shape: ModelShape, *, prompt_tokens: int = PROMPT_TOKENS) -> int:
    """Of a sequence: an answer and its prompt, and never more than the model has positions."""
    return min(prompt_tokens + spec.rollout.max_new_tokens, shape.max_positions)


def _division(spec: JobSpec, num_devices: int) -> Division:
    if spec.trainer.backend == "torch":
        return "fsdp" if num_devices > 1 else "whole"
    return ("zero1", "zero2", "zero3")[spec.trainer.zero_stage - 1]
