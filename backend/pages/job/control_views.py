"""Confirmation pages and actions of a job: pause, resume, cancel, kill.

Invariant: GET changes nothing. It returns the confirmation, which an open page shows in a dialog, and a browser
without scripts as a page.
"""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from backend.accounts.acting import Acting
from backend.clock import database_now
from backend.errors import Refusal
from backend.jobs.models import Job
from backend.jobs.selectors import job_visible_to
from backend.pages import curl
from backend.pages.job.controls import CONTROLS
from backend.pages.job.tabs import TABS
from backend.pages.undoing import show_outcome
from backend.pages.views import user_of

_BY_VERB = {each.verb: each for each in CONTROLS}


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def control(request: HttpRequest, job_id: str, verb: str) -> HttpResponse:
    job, acting = job_acted_on(request, job_id)
    action = _BY_VERB[verb]
    if not action.may(acting):
        raise PermissionDenied(f"You do not have permission to {verb} this job.")
    if request.method != "POST":
        context = {
            "job": job,
            "control": action,
            "costs": action.costs(job) if action.fits(job) else [],
            "fits": action.fits(job),
            "curl": curl.post(f"/jobs/{job.pk}/{verb}"),
            "back": requested_tab(request, job)[0],
            "tab_slug": request.GET.get("tab", ""),
        }
        return render(request, "pages/job/control.html", context)
    if not action.fits(job):
        messages.warning(request, f"You cannot {verb} this job because it is {job.state}.")
        return redirect(*requested_tab(request, job))
    try:
        show_outcome(request, action.do(job.pk, acting.name, database_now()))
    except Refusal as refusal:
        messages.error(request, refusal_text(refusal))
    return redirect(*requested_tab(request, job))


def job_acted_on(request: HttpRequest, job_id: str) -> tuple[Job, Acting]:
    """A job of another team gives the same 404 as one that does not exist."""
    user = user_of(request)
    job = job_visible_to(user, job_id)
    acting = Acting.person(user, job.team) if job is not None else None
    if job is None or acting is None:
        raise Http404("This job does not exist, or it belongs to another team.")
    return job, acting


def requested_tab(request: HttpRequest, job: Job) -> tuple[str, str]:
    """The URL name and job id of the tab on which the user clicked."""
    asked = request.POST.get("tab", request.GET.get("tab", ""))
    return next((tab.page for tab in TABS if tab.slug == asked), "job"), job.pk


def refusal_text(refusal: Refusal) -> str:
    return " ".join(refusal.sentences)
