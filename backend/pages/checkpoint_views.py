"""The checkpoints on a job's page: evaluations of each, the progress of those that go on, and starting one.

Invariants:
- who may look but not submit sees all of it, no button, and a sentence that says why;
- one showing of a button makes at most one evaluation, however often it is sent: its token is an idempotency key.
"""

import re
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from backend.accounts.models import User
from backend.accounts.selectors import may_submit, teams_of
from backend.api.idempotency import Answer, once
from backend.api.rate_limit import SUBMITS, take
from backend.checkpoints.evaluating import EvaluationWishes, evaluate_checkpoint, evaluation_spec
from backend.checkpoints.models import Checkpoint, CheckpointEvaluation, CheckpointState
from backend.checkpoints.selectors import checkpoints_of, the_checkpoint
from backend.clock import database_now
from backend.errors import NotFound, Refusal
from backend.jobs.models import TERMINAL_STATES, Job
from backend.jobs.submitting.submit import Submitter
from backend.pages.views import user_of

NUM_SHOWN = 20
FORM = "application/x-www-form-urlencoded"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    checkpoint: Checkpoint
    results: Sequence[CheckpointEvaluation]
    going_on: Sequence[Job]
    """Evaluations of it that are not over."""
    token: str
    """Of its button; empty: it has none."""


def rows_of(job: Job, *, may_evaluate: bool) -> list[CheckpointRow]:
    """Newest first."""
    found = list(checkpoints_of(job)[:NUM_SHOWN])
    going_on: dict[str, list[Job]] = defaultdict(list)
    of_these = Job.objects.filter(team=job.team_id, start_from__in=[each.pk for each in found], steps=0)
    for evaluation in of_these.exclude(state__in=TERMINAL_STATES).order_by("-created_at", "-id"):
        going_on[evaluation.start_from].append(evaluation)
    return [
        CheckpointRow(
            checkpoint=each,
            results=list(each.evaluations.all()),
            going_on=going_on[each.pk],
            token=secrets.token_urlsafe(24) if may_evaluate and each.state != CheckpointState.CORRUPT else "",
        )
        for each in found
    ]


@require_POST
@never_cache
@login_required
def evaluate(request: HttpRequest, checkpoint_id: str) -> HttpResponse:
    user, now = user_of(request), database_now()
    checkpoint = _checkpoint(user, checkpoint_id)
    job = checkpoint.job
    if not may_submit(user, job.team):
        raise PermissionDenied("Viewers see what evaluations say, and start none.")
    if request.content_type != FORM:
        return HttpResponse(f"This form is sent as {FORM}.", status=415)
    token = request.POST.get("token", "")
    if not _TOKEN.fullmatch(token):
        messages.error(request, "This page was incomplete when it was sent. Please try again.")
        return redirect("job", job_id=job.pk)

    def effect() -> Answer:
        spec = evaluation_spec(checkpoint, EvaluationWishes())
        made = evaluate_checkpoint(checkpoint, spec, pool=job.pool, by=Submitter(user=user, key=None), now=now)
        return Answer(status=303, body={"id": made.pk}, location=reverse("job", args=[made.pk]))

    try:
        take(SUBMITS, of=job.team_id)
        answer, replayed = once(request, effect, team_id=job.team_id, key=f"page:{token}", now=now)
    except Refusal as refusal:
        told = " ".join(each[:1].upper() + each[1:].rstrip(".") + "." for each in refusal.sentences)
        messages.error(request, told)
        return redirect("job", job_id=job.pk)
    if not replayed:
        messages.success(request, "It waits in line like any job. Its result joins the checkpoint when it is done.")
    return redirect(answer.location)


def _checkpoint(user: User, checkpoint_id: str) -> Checkpoint:
    for team in teams_of(user):
        try:
            return the_checkpoint(team, checkpoint_id)
        except NotFound:
            continue
    raise Http404("There is no such checkpoint, or it is not your team's.")
