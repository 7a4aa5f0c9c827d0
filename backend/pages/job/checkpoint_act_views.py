"""Confirmation pages and actions of a checkpoint (pin, promote, delete), its download, and the retention rule."""

from collections.abc import Mapping
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST
from pydantic import ValidationError

from backend.accounts.acting import Acting
from backend.accounts.selectors import teams_of
from backend.borders.types import read_count
from backend.checkpoints.api import ChangeRetention
from backend.checkpoints.downloads.downloading import handed_out
from backend.checkpoints.models import Checkpoint, Retention
from backend.checkpoints.selectors import models_of, retention_of, the_checkpoint
from backend.checkpoints.services import set_retention
from backend.clock import database_now
from backend.errors import Invalid, NotFound, Refusal
from backend.jobs.models import Job
from backend.pages import curl
from backend.pages.job.checkpoint_acts import ACTS, may_change
from backend.pages.job.control_views import job_acted_on, refusal_text
from backend.pages.undoing import Done, UndoForm, show_outcome
from backend.pages.views import user_of

_BY_VERB = {each.verb: each for each in ACTS}
_NOT_THEIRS = "You can view and download checkpoints but not change them. Ask a member of the team."
SECONDS_A_DAY: Final = 86_400
_WANTED: Final = {
    "keep_last": "Newest to keep: a whole number, 1 to 1,000",
    "keep_best": "Best to keep: a whole number, 0 to 1,000",
    "metric": "Best by: the name of a metric, such as reward/mean",
    "days": "Maximum age: whole days, 1 to 3,660, or empty",
}


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def act(request: HttpRequest, checkpoint_id: str, verb: str) -> HttpResponse:
    checkpoint, acting = checkpoint_acted_on(request, checkpoint_id)
    action = _BY_VERB[verb]
    if not may_change(acting):
        raise PermissionDenied(_NOT_THEIRS)
    if request.method != "POST":
        fits = action.fits(checkpoint)
        context = {
            "checkpoint": checkpoint,
            "job": checkpoint.job,
            "act": action,
            "fits": fits,
            "costs": action.costs(checkpoint) if fits else [],
            "models": models_of(acting.team)[:100] if action.names_model else [],
        }
        return render(request, "pages/job/checkpoint_act.html", context)
    try:
        message = action.do(checkpoint, request.POST, acting.name, database_now())
        back = reverse(f"{action.undone_by}_checkpoint", args=[checkpoint.pk]) if action.undone_by else ""
        show_outcome(request, Done(message, UndoForm(address=back) if back else None))
    except Refusal as refusal:
        messages.error(request, refusal_text(refusal))
    return redirect(f"{reverse('job_checkpoints', args=[checkpoint.job_id])}#{checkpoint.pk}")


@require_POST
@never_cache
@login_required
def download(request: HttpRequest, checkpoint_id: str) -> HttpResponse:
    """The model as one .tar. By POST, because each download is recorded in the audit log."""
    checkpoint, acting = checkpoint_acted_on(request, checkpoint_id)
    try:
        url, _, _ = handed_out(checkpoint, actor=acting.name, now=database_now())
    except Refusal as refusal:
        messages.error(request, refusal_text(refusal))
        return redirect("job_checkpoints", job_id=checkpoint.job_id)
    return redirect(url)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def retention(request: HttpRequest, job_id: str) -> HttpResponse:
    """The retention rule of a job's checkpoints."""
    job, acting = job_acted_on(request, job_id)
    if not may_change(acting):
        raise PermissionDenied(_NOT_THEIRS)
    if request.method != "POST":
        rule = retention_of(job)
        days = -(-rule.ttl_s // SECONDS_A_DAY) if rule.ttl_s else ""
        context = {"job": job, "rule": rule, "days": days, "curl": curl.get(f"/jobs/{job.pk}/retention")}
        return render(request, "pages/job/retention.html", context)
    try:
        wanted, before = _parse_rule(request.POST), retention_of(job)
        set_retention(job, actor=acting.name, now=database_now(), **wanted)
        message = "Rule saved. Other checkpoints are deleted within minutes and cannot be restored."
        show_outcome(request, Done(message, _back_to(job, before, wanted)))
    except Refusal as refusal:
        messages.error(request, refusal_text(refusal))
    return redirect("job_checkpoints", job_id=job.pk)


def checkpoint_acted_on(request: HttpRequest, checkpoint_id: str) -> tuple[Checkpoint, Acting]:
    """A checkpoint of another team gives the same 404 as one that does not exist."""
    user = user_of(request)
    for team in teams_of(user):
        try:
            checkpoint = the_checkpoint(team, checkpoint_id)
        except NotFound:
            continue
        acting = Acting.person(user, team)
        if acting is not None:
            return checkpoint, acting
    raise Http404("This checkpoint does not exist, or it belongs to another team.")


def _back_to(job: Job, before: Retention, wanted: Mapping[str, Any]) -> UndoForm | None:
    """None for a rule with hours (set by REST), which the form cannot express."""
    if all(getattr(before, name) == value for name, value in wanted.items()) or (before.ttl_s or 0) % SECONDS_A_DAY:
        return None
    days = str(before.ttl_s // SECONDS_A_DAY) if before.ttl_s else ""
    fields = {name: str(getattr(before, name)) for name in ("keep_last", "keep_best", "metric")} | {"days": days}
    return UndoForm(address=reverse("job_retention", args=[job.pk]), fields=fields)


def _parse_rule(sent: QueryDict) -> dict[str, Any]:
    """By the rules of the API. Raises `Invalid`."""
    typed = {name: sent.get(name, "").strip() for name in _WANTED}
    read: dict[str, Any] = {name: read_count(typed[name]) for name in ("keep_last", "keep_best")}
    read |= {"metric": typed["metric"], "ttl_s": None}
    if typed["days"]:
        read["ttl_s"] = (read_count(typed["days"]) or 0) * SECONDS_A_DAY
    try:
        return ChangeRetention.model_validate(read).model_dump()
    except ValidationError as failure:
        wrong = ["days" if error["loc"][0] == "ttl_s" else str(error["loc"][0]) for error in failure.errors()]
        errors = [f"{_WANTED[name]}; got “{typed[name][:40]}”." for name in dict.fromkeys(wrong)]
        raise Invalid(" ".join(errors)) from None
