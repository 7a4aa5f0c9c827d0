"""Settings that every trainer takes from a job's spec, whichever trainer it is."""

from dataclasses import dataclass
from typing import Self

from engine.spec.job import AlgorithmSpec, JobSpec, OptimizerSpec, TrainerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    optimizer: OptimizerSpec
    algorithm: AlgorithmSpec
    trainer: TrainerSpec
    temperature: float
    """The one that responses are sampled with; their log-probs belong to it."""
    max_new_tokens: int
    seed: int
    mini_batches: int = 1
    passes: int = 1

    @property
    def warmup_updates(self) -> int:
        """The warm-up is given in steps; the rate rises with each of their updates."""
        return self.optimizer.warmup_steps * self.mini_batches * self.passes

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        return cls(
            optimizer=spec.optimizer,
            algorithm=spec.algorithm,
            trainer=spec.trainer,
            temperature=spec.rollout.temperature,
            max_new_tokens=spec.rollout.max_new_tokens,
            seed=spec.training.seed,
            mini_batches=spec.training.mini_batches,
            passes=spec.training.passes,
        )
