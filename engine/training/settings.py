"""The settings that every trainer takes from a job's spec."""

from dataclasses import dataclass
from typing import Self

from engine.spec.job import AlgorithmSpec, JobSpec, OptimizerSpec, TrainerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    optimizer: OptimizerSpec
    algorithm: AlgorithmSpec
    trainer: TrainerSpec
    num_steps: int
    """The whole job's steps, over which the learning rate schedule runs."""
    temperature: float
    """The sampling temperature; log-probs are computed at it."""
    max_new_tokens: int
    seed: int
    mini_batches: int = 1
    passes: int = 1

    @property
    def updates_a_step(self) -> int:
        return self.mini_batches * self.passes

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        return cls(
            optimizer=spec.optimizer,
            algorithm=spec.algorithm,
            trainer=spec.trainer,
            num_steps=spec.training.steps,
            temperature=spec.rollout.temperature,
            max_new_tokens=spec.rollout.max_new_tokens,
            seed=spec.training.seed,
            mini_batches=spec.training.mini_batches,
            passes=spec.training.passes,
        )
