"""The checkpoints on a job's page: the evaluations of each, with the progress of running ones.

Invariant: viewers see a sentence with the reason in place of the buttons, and everything else.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from backend.accounts.acting import Acting
from backend.checkpoints.models import Checkpoint, CheckpointEvaluation, CheckpointState
from backend.checkpoints.selectors import checkpoints_of
from backend.jobs.models import TERMINAL_STATES, Job
from backend.pages.job.checkpoint_acts import CheckpointAct, acts_of
from backend.pages.job.panels.charts import HELD_OUT
from backend.telemetry.selectors import values_at_steps

NUM_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    checkpoint: Checkpoint
    own: float | None
    """The held-out reward that the run itself measured at its step."""
    results: Sequence[CheckpointEvaluation]
    going_on: Sequence[Job]
    """Its running evaluations."""
    can_evaluate: bool
    acts: Sequence[CheckpointAct]
    can_download: bool


def rows_of(job: Job, acting: Acting) -> list[CheckpointRow]:
    """Newest first."""
    checkpoints = list(checkpoints_of(job).prefetch_related("promotions__model")[:NUM_SHOWN])
    may_evaluate = "jobs:write" in acting.scopes
    own = _measured_by_the_run(job, checkpoints)
    going_on: dict[str, list[Job]] = defaultdict(list)
    of_these = Job.objects.filter(team=job.team_id, start_from__in=[each.pk for each in checkpoints], steps=0)
    for evaluation in of_these.exclude(state__in=TERMINAL_STATES).order_by("-created_at", "-id"):
        going_on[evaluation.start_from].append(evaluation)
    return [
        CheckpointRow(
            checkpoint=each,
            own=own.get((each.attempt, each.step)),
            results=list(each.evaluations.all()),
            going_on=going_on[each.pk],
            can_evaluate=may_evaluate and each.state != CheckpointState.CORRUPT,
            acts=acts_of(each, acting),
            can_download=each.state == CheckpointState.COMPLETE,
        )
        for each in checkpoints
    ]


def _measured_by_the_run(job: Job, found: Sequence[Checkpoint]) -> dict[tuple[int, int], float]:
    """By attempt and step: measured by that attempt, or by the last earlier one that did the step."""
    values = values_at_steps(job, HELD_OUT, {each.step for each in found})
    measured: dict[tuple[int, int], float] = {}
    for each in found:
        for attempt, step, value in values:
            if step == each.step and attempt <= each.attempt:
                measured[each.attempt, each.step] = value
    return measured
