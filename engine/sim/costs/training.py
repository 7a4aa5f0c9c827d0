"""A training step: log-probs of the batch under the weights before it, then an update for each mini-batch.

    seconds = params · tokens · (6 / MFU + 2 / (MFU · forward gain)) / (devices · flops)         LoRA: 4 instead of 6
    MFU = highest · t / (t + half)        t: tokens of one update on one device (the penalty of strong scaling)

The more devices share an update, the less each has to do while weights are gathered and gradients reduced.
No reference model: DAPO has none. With LoRA only adapters have gradients and moments; for the weights only activations
and their gradients are computed.
"""

from dataclasses import dataclass
from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.devices import Device
from engine.sim.costs.lora import adapter_weights
from engine.sim.costs.models import Model

MFU: Final = Constant(
    name="mfu",
    value=0.45,
    unit="of the flops, at any number of tokens",
    origin="assumed",
    source="what large dense models are trained with on such devices",
    sweep=(0.67, 1.33),
)
HALF_TOKENS: Final = Constant(
    name="half_tokens",
    value=30_000,
    unit="tokens a device and update",
    origin="fitted",
    source="DORA: 35 % of a sync step at 64 H800, 32B, 16 updates are not rollout: 487 s at 14,138 tokens/s",
)
FORWARD_GAIN: Final = Constant(
    name="forward_gain",
    value=0.835,
    unit="of the update's efficiency",
    origin="fitted",
    source="verl at 32 H20: old log-probs 107.7 s, an update 269.8 s",
)
STATE_BYTES: Final = 16
"""Of a weight in training: bf16 weight and gradient, float32 master and two moments."""
ACTIVATIONS: Final = Constant(
    name="activations",
    value=0.3,
    unit="of a device's memory",
    origin="assumed",
    source="with recomputation, a few sequences of 16K tokens at a time",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    update_s: float
    log_probs_s: float

    @property
    def total_s(self) -> float:
        return self.update_s + self.log_probs_s


def training_cost(
    device: Device,
    model: Model,
    *,
    devices: int,
    tokens: float,
    updates: int,
    lora_rank: int = 0,
    book: Book = AS_THEY_STAND,
) -> TrainingCost:
    share = tokens / updates / devices
    mfu = book(MFU) * share / (share + book(HALF_TOKENS))
    pass_s = model.num_weights * tokens / (devices * device.flops)
    return TrainingCost(
        update_s=(4 if lora_rank else 6) * pass_s / mfu, log_probs_s=2 * pass_s / (mfu * book(FORWARD_GAIN))
    )


def state_bytes(model: Model, *, lora_rank: int = 0) -> float:
    """`lora_rank`: 0 trains all weights."""
    if lora_rank:
        return model.weight_bytes + STATE_BYTES * adapter_weights(model, lora_rank)
    return STATE_BYTES * model.num_weights


def fewest_devices(device: Device, model: Model, *, lora_rank: int = 0, book: Book = AS_THEY_STAND) -> int:
    """The fewest devices that hold the training state."""
    return -int(-state_bytes(model, lora_rank=lora_rank) // (device.memory_bytes * (1 - book(ACTIVATIONS))))
