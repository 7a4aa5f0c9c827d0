"""How a trainer divides and computes: what decides its memory. `planning` derives it from a spec."""

from dataclasses import dataclass
from typing import Final, Literal

from engine.fit.shape import ModelShape
from engine.spec.job import JobSpec

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
