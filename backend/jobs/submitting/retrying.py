"""Retry: a new job made from a finished one, with changes, starting at one of its checkpoints.

Invariant: the finished job does not change; the new job names it as parent.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from pydantic import ValidationError

from backend.audit.services import record_action
from backend.errors import FieldError, InvalidState, NotFound, field_errors
from backend.jobs.attempts.resume_points import job_of_checkpoint, resume_point
from backend.jobs.lifecycle import locked_job, record_event
from backend.jobs.models import Job
from backend.jobs.submitting.refusals import SpecRefused
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.jobs.submitting.successors import retry_name
from engine.spec.job import JobSpec

FROM_START: Final = "start"


def retry_job(
    job: Job,
    *,
    start_from: str | None,
    changes: Mapping[str, Any],
    by: Submitter,
    now: datetime,
) -> Job:
    """`start_from`: a checkpoint of this job, "start", or None for its newest. `changes` is merged into the spec as in
    RFC 7396; the name gets a retry number unless they set one. Raises `InvalidState` and what `submit_job` raises.
    """
    with transaction.atomic():
        parent = locked_job(job.pk)
        if not parent.is_terminal:
            raise InvalidState(
                f"A job that is {parent.state} cannot be retried. Wait until it ends, or cancel it.",
                state=parent.state,
                allowed=[],
            )
        spec = _change_spec(parent.spec, {"name": retry_name(parent), **changes})
        child = submit_job(
            by=by,
            team=parent.team,
            project=parent.project,
            spec=spec,
            pool=parent.pool,
            now=now,
            start_from=_find_checkpoint(parent, start_from),
            parent=parent,
        )
        record_event(parent, "retried", actor=by.actor, now=now, data={"job": child.pk})
        data = {"job": child.pk, "start_from": child.start_from}
        record_action(team_id=parent.team_id, actor=by.actor, action="job.retry", target=parent.pk, now=now, data=data)
    return child


def _find_checkpoint(parent: Job, wanted: str | None) -> str:
    if wanted == FROM_START:
        return ""
    if wanted is None:
        point = resume_point(parent)
        return point.checkpoint if point else ""
    if job_of_checkpoint(parent.team, wanted) != parent:
        error = FieldError(pointer="/from", code="not_found", message="this job has no checkpoint with this id")
        raise NotFound("Checkpoint not found.", errors=[error])
    return wanted


def _change_spec(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> JobSpec:
    patched = _merge(spec, changes)
    try:
        return JobSpec.model_validate(patched)
    except ValidationError as failure:
        raise SpecRefused("The changed spec is not valid.", errors=field_errors(failure, patched)) from None


def _merge(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7396, except that null stays a value: specs use it."""
    merged = dict(target)
    for key, value in patch.items():
        below = merged.get(key)
        merged[key] = (
            _merge(below if isinstance(below, Mapping) else {}, value) if isinstance(value, Mapping) else value
        )
    return merged
