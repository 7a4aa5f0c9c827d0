"""Results of evaluations, each compared with the previous one.

Invariants:
- two results are compared only if they used the same questions: environment, parameters, number of prompts, seed and
  sampling are equal; the number of answers to each prompt may differ, since their mean estimates the same value;
- a difference is called clear only if it exceeds twice its standard error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from backend.checkpoints.models import CheckpointEvaluation
from backend.jobs.models import Job, JobEvent
from backend.jobs.selectors import starting_steps
from engine.spec.evaluation import TokenSampling

MOST_OF_A_JOB: Final = 500
SAMPLING: Final = tuple(each.name for each in fields(TokenSampling))
CLEAR: Final = 2.0
"""Standard errors of a difference: chance alone exceeds this in one of twenty cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    label: str
    """Its name in a comparison."""
    mean: float
    error: float
    """The standard error of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    evaluation: CheckpointEvaluation
    error: float
    before: Result | None
    """None: no earlier comparable result."""

    @property
    def change(self) -> float | None:
        return None if self.before is None else self.evaluation.reward_mean - self.before.mean

    @property
    def is_clear(self) -> bool:
        if self.before is None or self.change is None:
            return False
        return abs(self.change) > CLEAR * math.hypot(self.error, self.before.error)


def compared(evaluations: Sequence[CheckpointEvaluation]) -> list[Compared]:
    """With the newest result of an earlier step of the same training, else with that run's result before training."""
    trained = {each.checkpoint.job_id for each in evaluations}
    rows = CheckpointEvaluation.objects.filter(checkpoint__job__in=trained).select_related("job", "checkpoint")
    of_job: dict[str, list[CheckpointEvaluation]] = {}
    for each in rows.order_by("-checkpoint__step", "-at")[: MOST_OF_A_JOB * max(1, len(trained))]:
        of_job.setdefault(each.checkpoint.job_id, []).append(each)
    first = _first_of_runs(trained)
    return [
        Compared(
            evaluation=each,
            error=each.reward_error,
            before=_before(each, of_job[each.checkpoint.job_id], first.get(each.checkpoint.job_id)),
        )
        for each in evaluations
    ]


def _before(
    this: CheckpointEvaluation, others: Sequence[CheckpointEvaluation], first: tuple[Job, Mapping[str, Any]] | None
) -> Result | None:
    for other in others:
        if other.checkpoint.step < this.checkpoint.step and _asks_the_same(other.job, this.job):
            label = f"step {other.checkpoint.step:,}"
            return Result(label=label, mean=other.reward_mean, error=other.reward_error)
    if first is None or not _asks_the_same(first[0], this.job):
        return None
    scores = first[1]
    error = float(scores.get("reward_error", 0.0))
    return Result(label="before training", mean=float(scores["reward_mean"]), error=error)


def _asks_the_same(one: Job, other: Job) -> bool:
    return _questions(one.spec) == _questions(other.spec)


def _questions(spec: Mapping[str, Any]) -> Sequence[object]:
    rollout, evaluation = spec["rollout"], spec["evaluation"]
    sampling = [_given(evaluation.get(name), rollout[name]) for name in SAMPLING]
    return (spec["environment"], evaluation["prompts"], spec["training"]["seed"], sampling)


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _first_of_runs(jobs: set[str]) -> dict[str, tuple[Job, Mapping[str, Any]]]:
    """Each run's earliest result for the weights that it started from."""
    starts = starting_steps(jobs)
    events = JobEvent.objects.filter(job__in=jobs, type="evaluated", data__version__in=set(starts.values()))
    found: dict[str, tuple[Job, Mapping[str, Any]]] = {}
    for event in events.select_related("job").order_by("job", "seq"):
        if "reward_mean" in event.data and event.data["version"] == starts.get(event.job_id):
            found.setdefault(event.job_id, (event.job, event.data))
    return found
