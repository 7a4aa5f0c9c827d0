"""New job: template, form, submit.

Invariants:
- one rendering of the form creates at most one job, however often it is sent: its token is an idempotency key;
- a refused form is shown again with all typed values and all errors;
- the preview is for the typed values: with `part` the form is validated, and nothing is created.
"""

import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from backend.accounts.models import User
from backend.api.idempotency import Answer, once
from backend.api.limits.rate_limit import SUBMITS, RateExceeded, take, take_sent
from backend.clock import database_now
from backend.errors import Conflict, Invalid, NotFound
from backend.jobs.queue.scheduling import outlook
from backend.jobs.submitting.costs import cost_of
from backend.jobs.submitting.resolving import ResolvedSpec, resolve_spec
from backend.jobs.submitting.submit import Submitter, check_submission, submit_job
from backend.jobs.submitting.templates import gallery
from backend.pages import words
from backend.pages.assets.on_nodes import doubts_of
from backend.pages.new_job.as_code import calls
from backend.pages.new_job.environment_params import offered_params
from backend.pages.new_job.forms import JobForm
from backend.pages.new_job.spec_fields import SpecField, field_at, put_at, value_at
from backend.pages.new_job.starting_specs import (
    StartingPoint,
    newest_checkpoint,
    requested_starting_spec,
    starting_point_sent,
)
from backend.pages.new_job.submit_targets import SubmitTarget, names_to_choose, submit_targets_of
from backend.pages.views import user_of
from backend.usage.pricing.money import shown
from engine.presets.by_model import PRESET_NUMBERS
from engine.presets.preset import Preset
from engine.spec.job import JobSpec
from engine.spec.settings.hints import hints_of
from engine.spec.settings.paths import is_set

_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,60}")
NO_CHECKPOINT = (
    "The checkpoint was deleted, or belongs to another team. Choose another starting point or the base model."
)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def new_job(request: HttpRequest) -> HttpResponse:
    user = user_of(request)
    targets = submit_targets_of(user)
    if not targets and not _may_ever_submit(user):
        raise PermissionDenied("Viewers can view jobs but not submit them. Ask a team owner to change your role.")
    if request.method == "POST" and request.content_type != "application/x-www-form-urlencoded":
        return HttpResponse("This form must be sent as application/x-www-form-urlencoded.", status=415)
    if request.method != "POST":
        chosen, spec, starting_point = requested_starting_spec(user, request.GET)
        return _show(request, JobForm.showing(spec), targets, starting_point=starting_point, chosen=chosen)
    form = JobForm.typed({key: str(value) for key, value in request.POST.items()})
    target = next((each for each in targets if each.value == request.POST.get("target")), None)
    if target is None:
        form.errors.setdefault("", []).append("Choose one of your projects and pools.")
    if target is None or form.spec is None or {"part", "preview"} & request.POST.keys():
        resolved = _resolve(form.spec, target)
        _add_preview_errors(request, form, resolved)
        more: dict[str, Any] = (
            {"template": "pages/new_job/_judged.html", "status": 200} if "part" in request.POST else {}
        )
        return _show(request, form, targets, target=target, resolved=resolved, **more)
    return _submit(request, form, form.spec, targets, target)


def _add_preview_errors(request: HttpRequest, form: JobForm, resolved: ResolvedSpec | None) -> None:
    """Adds the errors that a submission would get now."""
    if resolved is None:
        return
    try:
        check_submission(resolved, start_from=request.POST.get("start_from", ""))
    except Invalid as refusal:
        form.remark(refusal.errors, refusal.detail)
    except NotFound:
        form.remark((), NO_CHECKPOINT)


def _submit(
    request: HttpRequest, form: JobForm, spec: JobSpec, targets: list[SubmitTarget], target: SubmitTarget
) -> HttpResponse:
    user, now, token = user_of(request), database_now(), request.POST.get("token", "")
    if not _TOKEN.fullmatch(token):
        form.errors.setdefault("", []).append("The form was incomplete. Submit it again.")
        return _show(request, form, targets, target=target)

    def effect() -> Answer:
        job = submit_job(
            by=Submitter(user=user, key=None),
            team=target.project.team,
            project=target.project,
            spec=spec,
            pool=target.pool,
            start_from=request.POST.get("start_from", ""),
            now=now,
        )
        return Answer(status=303, body={"id": job.pk}, location=reverse("job", args=[job.pk]))

    try:
        take_sent(sum(map(len, request.POST.values())), of=target.project.team_id)
        take(SUBMITS, of=target.project.team_id)
        answer, replayed = once(request, effect, team_id=target.project.team_id, key=f"page:{token}", now=now)
    except Invalid as refusal:
        if refusal.code == "key_reused":
            form.blame((), "This form has already created a job. To create another one, submit it again.")
        else:
            form.blame(refusal.errors, refusal.detail)
        return _show(request, form, targets, target=target, arithmetic=refusal.extensions.get("arithmetic", ()))
    except NotFound:
        form.blame((), NO_CHECKPOINT)
        return _show(request, form, targets, target=target)
    except RateExceeded as refusal:
        form.blame(
            (), f"Too many submissions by your team. Wait {refusal.headers['Retry-After']} s, then submit again."
        )
        return _show(request, form, targets, target=target, status=429)
    except Conflict:
        form.blame((), "This form is already being submitted. Check the job list before you try again.")
        return _show(request, form, targets, target=target, status=409)
    if not replayed:
        messages.success(request, "Job submitted. This page updates live.")
    return redirect(answer.location)


def _show(
    request: HttpRequest,
    form: JobForm,
    targets: list[SubmitTarget],
    *,
    starting_point: StartingPoint | None = None,
    chosen: str | None = None,
    target: SubmitTarget | None = None,
    resolved: ResolvedSpec | None = None,
    arithmetic: Sequence[str] = (),
    template: str = "pages/new_job.html",
    status: int | None = None,
) -> HttpResponse:
    """`arithmetic`: the memory calculation by which the job was refused."""
    target = target or (targets[0] if targets else None)
    starting_point = starting_point or starting_point_sent(user_of(request), request.POST)
    resolved = resolved or _resolve(form.spec, target)
    spec, fit = (resolved.spec, resolved.fit) if resolved else (form.spec, None)
    names = names_to_choose(targets)
    context = {
        "form": form,
        "targets": targets,
        "target": target,
        "starting_point": starting_point,
        "templates": gallery(),
        "names": names,
        "params": offered_params(form.texts["environment.name"], form.texts["environment.params"], names.data),
        "newest": newest_checkpoint(user_of(request)),
        "chosen": request.POST.get("chosen", "") if chosen is None else chosen,
        "token": secrets.token_urlsafe(24),
        "calls": calls(_body(form.spec, target, starting_point)) if form.spec and target else [],
        "outlook": _describe_outlook(spec, target, now=database_now()) if spec and target else "",
        "cost": _describe_cost(spec, target, now=database_now()) if spec and target else "",
        "doubts": doubts_of(resolved.pinned_assets, resolved.team, now=database_now()) if resolved else [],
        "hints": [each.message for each in hints_of(spec)] if spec else [],
        "presets": _describe_presets(resolved.presets) if resolved else [],
        "fit": fit,
        "arithmetic": fit.arithmetic if fit else arithmetic,
        "num_errors": len(form.summary),
    }
    return render(request, template, context, status=status or (422 if form.summary else 200))


def _resolve(spec: JobSpec | None, target: SubmitTarget | None) -> ResolvedSpec | None:
    """None without a valid spec or a target."""
    if spec is None or target is None:
        return None
    return resolve_spec(spec, team=target.project.team, project=target.project.pk, pool=target.pool)


def _describe_presets(presets: Iterable[Preset]) -> list[tuple[SpecField, str, str]]:
    """For each preset its field, its value in the form's syntax, and the reason."""
    fields = ((field_at(each.path), each) for each in presets)
    return [(found, found.text_of(each.value) or "empty", each.reason) for found, each in fields if found is not None]


def _body(spec: JobSpec, target: SubmitTarget, starting_point: StartingPoint) -> dict[str, Any]:
    """The body for the API, without settings at their default, which the API fills in."""
    slim = {"name": spec.name} | spec.model_dump(mode="json", exclude_defaults=True)
    for path in PRESET_NUMBERS:  # keep typed values that equal the default: a preset would replace them
        if is_set(spec, path):
            put_at(slim, path, value_at(spec.model_dump(mode="json"), path))
    start = {"start_from": starting_point.start_from} if starting_point.start_from else {}
    return {"project": target.project.pk, "pool": target.pool.name} | start | {"spec": slim}


def _describe_outlook(spec: JobSpec, target: SubmitTarget, *, now: datetime) -> str:
    reason = outlook(spec, team_id=target.project.team_id, pool=target.pool, now=now)
    subject = f"With {spec.num_devices} devices, this job"
    return (
        f"{subject} would start now."
        if reason is None
        else f"{subject} would wait: {words.plain(reason, words.REASONS)}."
    )


def _describe_cost(spec: JobSpec, target: SubmitTarget, *, now: datetime) -> str:
    """Empty: the pool is free."""
    cost = cost_of(spec, target.pool, now=now)
    if cost is None:
        return ""
    start = f" with all devices, {shown(cost.an_hour_at_least)} with the minimum to start"
    more = start if cost.an_hour_at_least != cost.an_hour else ""
    most = f"{shown(cost.at_most)} {cost.currency} for the maximum runtime"
    return f"Cost: {shown(cost.an_hour)} {cost.currency} per hour{more}; {most}."


def _may_ever_submit(user: User) -> bool:
    """Whether the user's role allows submission. The page shows a member what is missing, and a viewer a refusal."""
    return user.memberships.exclude(role="viewer").exists()
