"""Changing a job's name and tags, and its priority and maximum runtime while it waits."""

from collections.abc import Mapping
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from pydantic import ValidationError

from backend.clock import database_now
from backend.errors import Invalid, Refusal
from backend.jobs.control.changing import change_job
from backend.jobs.models import WAITING_STATES, Job
from backend.jobs.rest.jobs import ChangeJob
from backend.pages.job.control_views import job_acted_on, refusal_text
from backend.pages.undoing import Done, UndoForm, show_outcome

_WANTED: Final = {
    "name": "Name: 1 to 120 characters",
    "tags": "Tags: at most 20, each with at most 40 characters",
    "priority": "Priority: a whole number, −100 to 100",
    "max_runtime_s": "Maximum runtime: whole seconds, 10 to 2,592,000",
}


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def change(request: HttpRequest, job_id: str) -> HttpResponse:
    job, acting = job_acted_on(request, job_id)
    if "jobs:write" not in acting.scopes:
        raise PermissionDenied("You do not have permission to change this job.")
    if request.method != "POST":
        context = {"job": job, "waits": job.state in WAITING_STATES, "tags": ", ".join(job.tags)}
        return render(request, "pages/job/change.html", context)
    try:
        wanted = _parse_changes(request.POST, job)
        with transaction.atomic():
            change_job(job.pk, wanted, actor=acting.name, now=database_now())
        show_outcome(request, Done("Changes saved.", _back_from(wanted, job)) if wanted else "No changes.")
    except Refusal as refusal:
        messages.error(request, refusal_text(refusal))
    return redirect("job_config", job_id=job.pk)


def _back_from(wanted: Mapping[str, Any], before: Job) -> UndoForm | None:
    """None for a tag with a comma (set by REST), which the form would split in two."""
    fields = {name: getattr(before, name) for name in wanted}
    if any("," in tag for tag in fields.get("tags", [])):
        return None
    typed = {name: ", ".join(value) if name == "tags" else str(value) for name, value in fields.items()}
    return UndoForm(address=reverse("change_job", args=[before.pk]), fields=typed)


def _parse_changes(sent: QueryDict, job: Job) -> dict[str, Any]:
    """The changed values, validated by the API's rules. Raises `Invalid`."""
    typed: dict[str, Any] = {"name": sent.get("name", job.name).strip()}
    typed["tags"] = [tag.strip() for tag in sent.get("tags", ", ".join(job.tags)).split(",") if tag.strip()]
    for field in ("priority", "max_runtime_s"):
        if field in sent:
            text = sent.get(field, "").strip().replace("−", "-")
            typed[field] = int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else text
    try:
        read = ChangeJob.model_validate(typed).model_dump(exclude_unset=True)
    except ValidationError as failure:
        wrong = dict.fromkeys(str(error["loc"][0]) for error in failure.errors())
        errors = [f"{_WANTED[name]}; got “{sent.get(name, '').strip()[:40]}”." for name in wrong]
        raise Invalid(" ".join(errors)) from None
    return {field: value for field, value in read.items() if value != getattr(job, field)}
