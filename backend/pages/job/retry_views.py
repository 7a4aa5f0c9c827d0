"""Retrying an ended job: a new job with its spec, from one of its checkpoints or from the beginning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from backend.checkpoints.models import Checkpoint
from backend.clock import database_now
from backend.errors import Refusal
from backend.jobs.attempts.resume_points import resume_point
from backend.jobs.models import Job
from backend.jobs.submitting.retrying import FROM_START, retry_job
from backend.jobs.submitting.submit import Submitter
from backend.jobs.submitting.successors import retry_name
from backend.pages import curl
from backend.pages.job.control_views import job_acted_on, refusal_text, requested_tab
from backend.pages.job.controls import steps
from backend.pages.job.making import FORM, NOT_A_FORM, made_once, new_token
from backend.pages.templatetags.laminar import number
from backend.pages.views import user_of

NEWEST: Final = "newest"
_MOST_CHOICES: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A point where the new job may start, and its cost."""

    value: str
    label: str
    cost: str


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def retry(request: HttpRequest, job_id: str) -> HttpResponse:
    job, acting = job_acted_on(request, job_id)
    if "jobs:write" not in acting.scopes:
        raise PermissionDenied("You do not have permission to retry this job.")
    if request.method != "POST":
        begins = beginnings_of(job)
        asked = request.GET.get("from", "")
        chosen = next((each.value for each in begins if each.value == asked), begins[0].value)
        context = {
            "job": job,
            "name": retry_name(job),
            "beginnings": begins,
            "chosen": chosen,
            "token": new_token(),
            "curl": curl.post(f"/jobs/{job.pk}/retry", {} if chosen == NEWEST else {"from": chosen}, idempotent=True),
            "back": requested_tab(request, job)[0],
        }
        return render(request, "pages/job/retry.html", context)
    if request.content_type != FORM:
        return HttpResponse(NOT_A_FORM, status=415)
    now, asked = database_now(), request.POST.get("from", NEWEST)
    by = Submitter(user=user_of(request), key=None)
    try:
        location, is_new = made_once(
            request,
            lambda: retry_job(job, start_from=None if asked == NEWEST else asked, changes={}, by=by, now=now),
            team_id=job.team_id,
            now=now,
        )
    except Refusal as refusal:
        messages.error(request, refusal_text(refusal))
        return redirect("job", job_id=job.pk)
    if is_new:
        messages.success(request, f"Retry of {job.name} submitted. It is in the queue.")
    return redirect(location)


def beginnings_of(job: Job) -> Sequence[Beginning]:
    """The newest checkpoint first, which is the default: the job's own, or the one that the job itself started from."""
    first = Beginning(value=FROM_START, label="the beginning, with the base model", cost=_again(job, 0))
    newest = resume_point(job)
    if newest is None:
        return [first]
    kept = Checkpoint.objects.filter(job=job).usable().exclude(pk=newest.checkpoint)
    return [
        Beginning(value=NEWEST, label=f"step {number(newest.step)}, the newest", cost=_again(job, newest.step)),
        *(
            Beginning(value=each.pk, label=f"step {number(each.step)}", cost=_again(job, each.step))
            for each in kept[:_MOST_CHOICES]
        ),
        first,
    ]


def _again(job: Job, step: int) -> str:
    count = job.step - step
    if job.only_evaluates or count <= 0:
        return ""
    return f"{steps(count)} {'is' if count == 1 else 'are'} trained again"
