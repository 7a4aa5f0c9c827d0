"""What the brains need to know of a job, taken from its spec once.

Invariant: `evaluates` is the one place that knows after which steps the held-out prompts are answered.
"""

from dataclasses import dataclass
from typing import Self

from engine.policy.schedule import Schedule, schedule_for
from engine.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    schedule: Schedule
    steps: int
    groups_per_step: int
    group_size: int
    checkpoint_every: int
    evaluation_prompts: int
    evaluate_every: int
    max_batch: int

    @classmethod
    def from_spec(cls, spec: JobSpec) -> Self:
        return cls(
            schedule=schedule_for(spec.schedule),
            steps=spec.training.steps,
            groups_per_step=spec.training.prompts_per_step,
            group_size=spec.algorithm.group_size,
            checkpoint_every=spec.training.checkpoint_every,
            evaluation_prompts=spec.evaluation.prompts,
            evaluate_every=spec.evaluation.every,
            max_batch=spec.rollout.max_batch,
        )

    def evaluates(self, step: int) -> bool:
        """Before the first step, after the last, and every so many in between."""
        return step in (0, self.steps) or (self.evaluate_every > 0 and step % self.evaluate_every == 0)

    def checkpoints(self, step: int) -> bool:
        return step == self.steps or step % self.checkpoint_every == 0
