"""TrainerSpec: how a job's model is trained on its devices."""

from typing import Literal

from pydantic import Field

from engine.spec.settings.conditional import conditional
from engine.spec.strict import Strict


class TrainerSpec(Strict):
    backend: Literal["torch", "deepspeed"] = Field(
        "torch",
        description="The training backend. torch shards weights, gradients and optimizer over several devices (FSDP) "
        "and needs the least memory per device in bfloat16; deepspeed (ZeRO) trains dense models only.",
    )
    zero_stage: int = conditional(
        2, "trainer.zero_stage", "ZeRO shards the optimizer (1), also gradients (2), also weights (3).", ge=1, le=3
    )
    compute_dtype: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="Data type of matrix products; master weights stay in float32. Empty: bfloat16 on a GPU that "
        "supports it, float32 elsewhere.",
    )
    activations: Literal["kept", "recomputed", "offloaded"] | None = Field(
        None,
        description="What a layer stores for the backward pass. kept: all activations. recomputed: only its input, and "
        "the rest is recomputed. offloaded: its input in host memory. Results are bit-identical. Empty: kept if that "
        "takes at most 8 GB, else recomputed.",
    )
    micro_batch_tokens: int = Field(
        8_192,
        ge=16,
        le=4_194_304,
        description="Tokens in one forward and backward pass; limits memory use. Left out: chosen for the model; 8,192 "
        "for a small model.",
    )
    sequence_parallel: int = conditional(
        1,
        "trainer.sequence_parallel",
        "Devices that share a sequence: each computes some of its tokens, and in attention all tokens for some of the "
        "heads. For contexts too long for one device.",
        ge=1,
        le=64,
    )
    shard_within: Literal["all", "node"] = conditional(
        "all",
        "trainer.shard_within",
        "The devices among which weights, gradients and optimizer are sharded. all: the trainer's. node: those of a "
        "host; each host has a copy, and hosts exchange gradients only, once an update. Needs as many devices on every "
        "host.",
    )
    gradient_sums: Literal["micro_batch", "update"] | None = conditional(
        None,
        "trainer.gradient_sums",
        "When gradients are summed over the devices. micro_batch: after each micro-batch; a device keeps its part of "
        "the sum only. update: after the last one of an update; a device keeps all gradients until then. Empty: update "
        "if the memory of the GPUs holds them.",
    )
    lora_rank: int = Field(0, ge=0, le=1_024, description="Train a LoRA adapter of this rank; 0: all weights.")
    lora_alpha: float = conditional(
        32.0, "trainer.lora_alpha", "The adapter is scaled by alpha / rank.", gt=0, le=10_000
    )
