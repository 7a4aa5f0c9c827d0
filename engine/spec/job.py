"""JobSpec: everything that a customer may set about a job.

Invariants:
- a spec that validates here is accepted by the engine: both planes use this very class;
- a default is what the demo job runs with; every bound has its reason beside it;
- a resolved spec (all defaults filled in) validates to itself.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.spec.strict import Strict, Text

Name = Annotated[Text, Field(min_length=1, max_length=120)]
Tag = Annotated[Text, Field(min_length=1, max_length=40)]
ParamKey = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
ParamValue = bool | int | float | Annotated[Text, Field(max_length=2_000)]


_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ModelSpec(Strict):
    """A job of the control plane names a model; only `python -m engine run` takes a path."""

    source: Annotated[Text, Field(min_length=1, max_length=500)] = Field(
        "demo", description="A built-in model (demo), or the name of a folder among the cluster's models."
    )

    @property
    def is_name(self) -> bool:
        return _MODEL_NAME.fullmatch(self.source) is not None


class EnvironmentSpec(Strict):
    name: Literal["running_sums"] = Field("running_sums", description="What is learned.")
    params: dict[ParamKey, ParamValue] = Field(
        default_factory=dict, max_length=40, description="Settings of the environment."
    )


class AlgorithmSpec(Strict):
    name: Literal["grpo"] = Field("grpo", description="How rewards become gradients.")
    group_size: int = Field(8, ge=2, le=256, description="Samples of one prompt; their mean is the baseline.")
    clip_low: float = Field(0.2, gt=0, lt=1, description="How far a token's ratio may fall before it is clipped.")
    clip_high: float = Field(0.28, gt=0, le=10, description="How far a token's ratio may rise before it is clipped.")


class OptimizerSpec(Strict):
    learning_rate: float = Field(3e-4, gt=0, le=1, description="AdamW's step size.")
    warmup_steps: int = Field(5, ge=0, le=100_000, description="Steps over which the learning rate rises from zero.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's decay.")
    max_grad_norm: float = Field(1.0, gt=0, le=1_000, description="Gradients longer than this are scaled down.")


class ScheduleSpec(Strict):
    name: Literal["laminar", "sync"] = Field("laminar", description="Who waits for whom.")
    max_staleness: int | None = Field(
        None, ge=0, le=1_000, description="Older trajectories are dropped, with a reason. Empty: no bound."
    )


class TrainingSpec(Strict):
    steps: int = Field(100, ge=1, le=1_000_000, description="Optimizer steps.")
    prompts_per_step: int = Field(16, ge=1, le=65_536, description="Prompts in one step; each has a whole group.")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Draws the prompts and the samples.")
    checkpoint_every: int = Field(50, ge=1, le=1_000_000, description="Steps between checkpoints; the last is kept.")


class RolloutSpec(Strict):
    replicas: int = Field(2, ge=1, le=4_096, description="Rollout engines, each with its own weights and KV cache.")
    max_batch: int = Field(64, ge=1, le=4_096, description="Sequences that one replica decodes together.")
    max_new_tokens: int = Field(80, ge=1, le=131_072, description="Longer responses are cut.")
    temperature: float = Field(1.0, gt=0, le=4, description="1 samples from the model as it is.")


class EvaluationSpec(Strict):
    prompts: int = Field(256, ge=1, le=65_536, description="Held-out prompts, answered before and after training.")
    every: int = Field(0, ge=0, le=1_000_000, description="Also every so many steps; 0: only before and after.")


class ResourceSpec(Strict):
    """A device is one accelerator of a pool; on a CPU pool, one slot."""

    trainer_devices: int = Field(1, ge=1, le=4_096, description="Devices that the trainer holds.")
    devices_per_replica: int = Field(1, ge=1, le=64, description="Devices that each replica holds.")


class JobSpec(Strict):
    schema_version: Literal[1] = 1
    name: Name = Field(description="What you call this job.")
    tags: list[Tag] = Field(default_factory=list, max_length=20, description="Words to find it by.")
    model: ModelSpec = Field(default_factory=ModelSpec)
    environment: EnvironmentSpec = Field(default_factory=EnvironmentSpec)
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec)
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    schedule: ScheduleSpec = Field(default_factory=ScheduleSpec)
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    evaluation: EvaluationSpec = Field(default_factory=EvaluationSpec)
    resources: ResourceSpec = Field(default_factory=ResourceSpec)
    max_runtime_s: int = Field(3_600, ge=10, le=30 * 86_400, description="The job is stopped after this long.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.tags)) != len(self.tags):
            raise ValueError("tags must not repeat")
        if self.evaluation.every > self.training.steps:
            raise ValueError("evaluation.every must not exceed training.steps")
        return self

    @property
    def num_devices(self) -> int:
        return self.resources.trainer_devices + self.rollout.replicas * self.resources.devices_per_replica

    @property
    def trajectories_per_step(self) -> int:
        return self.training.prompts_per_step * self.algorithm.group_size
