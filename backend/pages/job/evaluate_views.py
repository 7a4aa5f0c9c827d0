"""The form that evaluates a checkpoint: number of prompts and answers, sampling, replicas.

Invariants:
- the form shows the settings of the checkpoint's own job; unchanged settings are left out of the request;
- one rendering of the form makes at most one evaluation, however often it is sent: its token is an idempotency key;
- a refused value is shown with its error at its field, and all typed values are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from pydantic import ValidationError

from backend.accounts.acting import Acting
from backend.checkpoints.evaluation.api import EvaluateCheckpoint, in_this_body, wishes_of
from backend.checkpoints.evaluation.evaluating import evaluate_checkpoint, evaluation_spec
from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.clock import database_now
from backend.errors import FieldError, Refusal, field_errors
from backend.jobs.models import Job
from backend.jobs.submitting.refusals import SpecRefused
from backend.jobs.submitting.submit import Submitter
from backend.pages import curl
from backend.pages.job.checkpoint_act_views import checkpoint_acted_on
from backend.pages.job.control_views import refusal_text
from backend.pages.job.making import FORM, NOT_A_FORM, made_once, new_token
from backend.pages.typed_numbers import TwoReadings, plain_number
from backend.pages.views import user_of

_FIELDS: Final[Mapping[str, tuple[str, bool, str]]] = {
    "prompts": ("Held-out prompts", True, "Drawn with the job's seed, so always the same ones."),
    "samples": ("Answers per prompt", True, "k of avg@k and pass@k."),
    "temperature": ("Temperature", False, "0: greedy, one answer per prompt."),
    "top_p": ("Top p", False, "Sample from the most likely tokens that add up to this share."),
    "replicas": ("Replicas", True, "Replicas share the prompts. Each uses as many devices as a replica of the job."),
}
"""By the names of the REST body: label, whether it is a whole number, help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationField:
    name: str
    label: str
    help: str
    text: str
    is_whole: bool
    error: str = ""


class _InvalidFields(Exception):
    """A typed value is not valid."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__(*errors)
        self.errors = errors


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def evaluate(request: HttpRequest, checkpoint_id: str) -> HttpResponse:
    checkpoint, acting = checkpoint_acted_on(request, checkpoint_id)
    if "jobs:write" not in acting.scopes:
        raise PermissionDenied("Viewers can read evaluations but not start them.")
    if request.method != "POST":
        return _form(request, checkpoint, typed=_own_settings(checkpoint))
    if request.content_type != FORM:
        return HttpResponse(NOT_A_FORM, status=415)
    return _start_evaluation(request, checkpoint, acting)


def _start_evaluation(request: HttpRequest, checkpoint: Checkpoint, acting: Acting) -> HttpResponse:
    job, now = checkpoint.job, database_now()
    own = _own_settings(checkpoint)
    typed = {name: request.POST.get(name, own[name]).strip() for name in _FIELDS}

    def make() -> Job:
        spec = evaluation_spec(checkpoint, wishes_of(_body(typed, own)))
        by = Submitter(user=user_of(request), key=None)
        return evaluate_checkpoint(checkpoint, spec, pool=job.pool, by=by, now=now)

    try:
        location, is_new = made_once(request, make, team_id=acting.team.pk, now=now)
    except _InvalidFields as invalid:
        return _form(request, checkpoint, typed=typed, errors=invalid.errors)
    except SpecRefused as refusal:
        return _form(request, checkpoint, typed=typed, errors=[in_this_body(error) for error in refusal.errors])
    except Refusal as refusal:
        messages.error(request, refusal_text(refusal))
        return redirect("job_checkpoints", job_id=job.pk)
    if is_new:
        messages.success(request, "Evaluation submitted. Its result appears next to the checkpoint when it is done.")
    return redirect(location)


def _own_settings(checkpoint: Checkpoint) -> dict[str, str]:
    """The settings of the checkpoint's job, as texts."""
    spec = checkpoint.job.spec
    asked, rollout = spec["evaluation"], spec["rollout"]
    drawn = {name: rollout[name] if asked.get(name) is None else asked[name] for name in ("temperature", "top_p")}
    values = {"prompts": asked["prompts"], "samples": asked.get("samples", 1), "replicas": 1} | drawn
    return {name: f"{values[name]:g}" if isinstance(values[name], float) else str(values[name]) for name in _FIELDS}


def _body(typed: Mapping[str, str], own: Mapping[str, str]) -> EvaluateCheckpoint:
    """The changed settings, validated by the API's rules. Raises `_InvalidFields`."""
    read: dict[str, Any] = {}
    wrong: list[FieldError] = []
    for name, (_, is_whole, _) in _FIELDS.items():
        if typed[name] in ("", own[name]):
            continue
        try:
            read[name] = _number(typed[name], whole=is_whole)
        except ValueError as error:
            wrong.append(FieldError(pointer=f"/{name}", code="not_a_number", message=str(error)))
    if wrong:
        raise _InvalidFields(wrong)
    try:
        return EvaluateCheckpoint.model_validate(read)
    except ValidationError as failure:
        raise _InvalidFields(field_errors(failure, read)) from None


def _number(text: str, *, whole: bool) -> int | float:
    """Raises `ValueError`, with a message for a person."""
    try:
        plain = plain_number(text, whole=whole)
        return int(plain) if whole else float(plain)
    except TwoReadings:
        raise
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"must be {kind}; got {text[:40]}") from None


def _form(
    request: HttpRequest, checkpoint: Checkpoint, *, typed: Mapping[str, str], errors: Sequence[FieldError] = ()
) -> HttpResponse:
    at_fields = {error.pointer.removeprefix("/"): error.sentence for error in errors}
    fields = [
        EvaluationField(
            name=name, label=label, help=text, text=typed[name], is_whole=is_whole, error=at_fields.pop(name, "")
        )
        for name, (label, is_whole, text) in _FIELDS.items()
    ]
    context = {
        "checkpoint": checkpoint,
        "job": checkpoint.job,
        "fields": fields,
        "elsewhere": list(at_fields.values()),
        "can_begin": checkpoint.state != CheckpointState.CORRUPT,
        "token": new_token(),
        "curl": curl.post(f"/checkpoints/{checkpoint.pk}/evaluate", {}, idempotent=True),
    }
    return render(request, "pages/job/evaluate.html", context, status=422 if errors else 200)
