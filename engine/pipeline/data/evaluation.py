"""An evaluation: the held-out prompts, answered by the weights of one version, one or several samples each.

    avg@k    mean over prompts of the mean reward of each prompt's answers
    pass@k   share of prompts with at least one answer that passes: its reward is at least the plan's pass mark

Invariants:
- only replicas that hold exactly these weights answer; if every relay has lost them, any may, and a fault reports it;
- a failed grader is not a reward of 0: its answers are counted but left out of their prompt's mean, and a prompt
  without a graded answer is left out of the result;
- standard errors are over prompts: answers to one prompt are not independent measurements;
- its progress is reported at most once in COUNT_EVERY_S, and always at its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import sqrt
from typing import Final, Self

from engine.pipeline.data.groups import GroupBook
from engine.pipeline.journal import EvaluationView
from engine.pipeline.messages.to_driver import AnswersCounted, EvaluationReported, FaultReported
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupKey, Trajectory
from engine.policy.lineage import WeightsId

# Often enough for a progress bar; a fact a second is cheap, however many prompts there are.
COUNT_EVERY_S: Final = 1.0


class Evaluation:
    def __init__(self, plan: Plan, *, weights: WeightsId) -> None:
        self.weights = weights
        self.any_version = False
        self.num_prompts, self._num_samples = plan.evaluation_prompts, plan.evaluation_samples
        self._pass_mark = plan.pass_mark
        # A prompt counts with any graded sample, even if others fail.
        self.groups = GroupBook(num_samples=self._num_samples, num_least=1)
        self._answered: list[Trajectory] = []
        self._num_given_up = 0
        self._given_up: list[int] = []
        for ordinal in range(self.num_prompts):
            self.groups.open(GroupKey(ordinal=ordinal, evaluation=weights.version), exact=weights)

    @classmethod
    def restored(cls, view: EvaluationView, plan: Plan) -> "Evaluation":
        evaluation = cls(plan, weights=view.weights)
        if view.any_version:
            evaluation.allow_any_version()
        for trajectory in view.answered:
            evaluation.take(trajectory)
        for ordinal in view.given_up:
            evaluation.give_up(GroupKey(ordinal=ordinal, evaluation=view.weights.version))
        evaluation._num_given_up = view.num_given_up
        return evaluation

    def view(self) -> EvaluationView:
        return EvaluationView(
            weights=self.weights,
            any_version=self.any_version,
            answered=tuple(self._answered),
            num_given_up=self._num_given_up,
            given_up=tuple(self._given_up),
        )

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def is_finished(self) -> bool:
        return len(self.groups) == 0

    @property
    def num_answered(self) -> int:
        """Prompts that have all their answers or were given up."""
        return self.num_prompts - len(self.groups)

    def accepts(self, trajectory: Trajectory) -> bool:
        fits = self.any_version or trajectory.writers == (self.weights,) or trajectory.failure is not None
        return fits and trajectory.key.group.evaluation == self.version and self.groups.misses(trajectory.key)

    def take(self, trajectory: Trajectory) -> None:
        if self.groups.misses(trajectory.key):
            self.groups.take(trajectory)
            self._answered.append(trajectory)

    def give_up(self, key: GroupKey) -> None:
        group = self.groups.get(key)
        if group is not None:
            self._num_given_up += len(group.missing)
            self._given_up.append(key.ordinal)
            self.groups.close(group)

    def allow_any_version(self) -> None:
        self.any_version = True
        for group in self.groups:
            group.exact = None

    def rename_weights(self, weights: WeightsId) -> None:
        """Renames the weights: a new incarnation of the trainer began with the same bytes."""
        self.weights = weights
        for group in self.groups:
            group.exact = None if self.any_version else weights

    def reports(self) -> list[EvaluationReported | FaultReported]:
        reports: list[EvaluationReported | FaultReported] = []
        graded = [trajectory for trajectory in self._answered if not trajectory.failure]
        num_failed = len(self._answered) - len(graded)
        num_newer = sum(trajectory.weights.version != self.version for trajectory in graded)
        num_untrusted = sum(not trajectory.trusted for trajectory in graded)
        if num_failed:
            reason = next(trajectory.failure.reason for trajectory in self._answered if trajectory.failure)
            reports.append(
                self._make_fault(f"{num_failed} held-out answers could not be graded: {reason}", "left out of the mean")
            )
        if self._num_given_up:
            message = f"{self._num_given_up} held-out answers never ended"
            reports.append(self._make_fault(message, "left out of the mean"))
        if num_untrusted:
            message = f"{num_untrusted} held-out rewards are not trusted by the environment"
            reports.append(self._make_fault(message, "they count as at most 0 in the mean"))
        if num_newer:
            message = f"version {self.version} was lost"
            reports.append(self._make_fault(message, f"{num_newer} answers are by newer weights"))
        if graded:
            reports.append(self._summarize(graded))
        return reports

    def _summarize(self, graded: Sequence[Trajectory]) -> EvaluationReported:
        by_prompt = groupby(sorted(graded, key=_prompt_of), key=_prompt_of)
        prompts = [list(answers) for _, answers in by_prompt]
        reward = Mean.of([Mean.of([_reward_counted(answer) for answer in answers]).value for answers in prompts])
        passed = Mean.of([float(any(map(self._passes, answers))) for answers in prompts])
        return EvaluationReported(
            weights=self.weights,
            num_prompts=len(prompts),
            num_samples=self._num_samples,
            reward_mean=reward.value,
            reward_std=reward.std,
            reward_error=reward.error,
            pass_rate=passed.value,
            pass_error=passed.error,
            length_mean=sum(trajectory.num_tokens for trajectory in graded) / len(graded),
        )

    def _passes(self, answer: Trajectory) -> bool:
        return answer.trusted and answer.reward >= self._pass_mark

    def _make_fault(self, message: str, action: str) -> FaultReported:
        return FaultReported(component=f"evaluation/{self.version}", message=message, action=action)


def _reward_counted(trajectory: Trajectory) -> float:
    """An untrusted answer counts as at most 0: leaving it out would raise the mean, so a model could choose its
    prompts."""
    return trajectory.reward if trajectory.trusted else min(0.0, trajectory.reward)


def _prompt_of(trajectory: Trajectory) -> int:
    return trajectory.key.group.ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean of independent values, at least one."""

    value: float
    std: float
    """Standard deviation of the values; 0 for a single value."""
    error: float
    """The standard error of the mean."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        num = len(values)
        mean = sum(values) / num
        std = sqrt(sum((value - mean) ** 2 for value in values) / max(1, num - 1))
        return cls(value=mean, std=std, error=std / sqrt(num))


class AnswerCounter:
    """Rate limit for the progress of an evaluation: no count is reported twice or too often."""

    def __init__(self) -> None:
        self._reported = 0
        self._reported_at = float("-inf")

    def count(self, evaluation: Evaluation, now: float) -> AnswersCounted | None:
        answered = evaluation.num_answered
        if answered == self._reported or (now - self._reported_at < COUNT_EVERY_S and not evaluation.is_finished):
            return None
        self._reported, self._reported_at = answered, now
        return AnswersCounted(version=evaluation.version, num_answered=answered, num_prompts=evaluation.num_prompts)
