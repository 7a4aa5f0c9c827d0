"""The checkpoints on a job's page: evaluations of each, the progress of those that go on, and starting one.

Invariants:
- who may look but not submit sees all of it, no button, and a sentence that says why;
- one showing of a button makes at most one evaluation, however often it is sent: its token is an idempotency key.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from backend.accounts.acting import Acting
from backend.checkpoints.evaluating import EvaluationWishes, evaluate_checkpoint, evaluation_spec
from backend.checkpoints.models import Checkpoint, CheckpointEvaluation, CheckpointState
from backend.checkpoints.selectors import checkpoints_of
from backend.clock import database_now
from backend.errors import Refusal
from backend.jobs.models import TERMINAL_STATES, Job
from backend.jobs.submitting.submit import Submitter
from backend.pages.charts import HELD_OUT
from backend.pages.job.checkpoint_act_views import checkpoint_acted_on
from backend.pages.job.checkpoint_acts import CheckpointAct, acts_of
from backend.pages.job.control_views import told_of
from backend.pages.job.making import FORM, NOT_A_FORM, made_once, new_token
from backend.pages.views import user_of
from backend.telemetry.selectors import values_at_steps

NUM_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    checkpoint: Checkpoint
    own: float | None
    """The held-out reward that the run itself measured at its step."""
    results: Sequence[CheckpointEvaluation]
    going_on: Sequence[Job]
    """Evaluations of it that are not over."""
    token: str
    """Of its button; empty: it has none."""
    acts: Sequence[CheckpointAct]
    can_download: bool


def rows_of(job: Job, acting: Acting) -> list[CheckpointRow]:
    """Newest first."""
    found = list(checkpoints_of(job).prefetch_related("promotions__model")[:NUM_SHOWN])
    may_evaluate = "jobs:write" in acting.scopes
    own = _measured_by_the_run(job, found)
    going_on: dict[str, list[Job]] = defaultdict(list)
    of_these = Job.objects.filter(team=job.team_id, start_from__in=[each.pk for each in found], steps=0)
    for evaluation in of_these.exclude(state__in=TERMINAL_STATES).order_by("-created_at", "-id"):
        going_on[evaluation.start_from].append(evaluation)
    return [
        CheckpointRow(
            checkpoint=each,
            own=own.get((each.attempt, each.step)),
            results=list(each.evaluations.all()),
            going_on=going_on[each.pk],
            token=new_token() if may_evaluate and each.state != CheckpointState.CORRUPT else "",
            acts=acts_of(each, acting),
            can_download=each.state == CheckpointState.COMPLETE,
        )
        for each in found
    ]


def _measured_by_the_run(job: Job, found: Sequence[Checkpoint]) -> dict[tuple[int, int], float]:
    """By attempt and step: as that attempt measured it, or the last one before it that did the step."""
    values = values_at_steps(job, HELD_OUT, {each.step for each in found})
    measured: dict[tuple[int, int], float] = {}
    for each in found:
        for attempt, step, value in values:
            if step == each.step and attempt <= each.attempt:
                measured[each.attempt, each.step] = value
    return measured


@require_POST
@never_cache
@login_required
def evaluate(request: HttpRequest, checkpoint_id: str) -> HttpResponse:
    user, now = user_of(request), database_now()
    checkpoint, acting = checkpoint_acted_on(request, checkpoint_id)
    job = checkpoint.job
    if "jobs:write" not in acting.scopes:
        raise PermissionDenied("Viewers see what evaluations say, and start none.")
    if request.content_type != FORM:
        return HttpResponse(NOT_A_FORM, status=415)

    def make() -> Job:
        spec = evaluation_spec(checkpoint, EvaluationWishes())
        return evaluate_checkpoint(checkpoint, spec, pool=job.pool, by=Submitter(user=user, key=None), now=now)

    try:
        location, is_new = made_once(request, make, team_id=job.team_id, now=now)
    except Refusal as refusal:
        messages.error(request, told_of(refusal))
        return redirect("job_checkpoints", job_id=job.pk)
    if is_new:
        messages.success(request, "It waits in line like any job. Its result joins the checkpoint when it is done.")
    return redirect(location)
