"""Validates a job before it is queued: the checks that are too slow or too risky for a request.

    submit ──▶ validating ──▶ queued
                   └────────▶ failed: config (can never start), reward (its code), data (its checkpoint)

Invariants:
- a job that needs no such check is queued at once;
- each attempt to validate is counted before anything is read: a spec that crashes its validator three times is refused;
- validation is idempotent: a job that is no longer `validating` is left alone.
"""

import logging
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import F

from backend.jobs.attempts.resume_points import checkpoint_of_team
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.submitting.code_check import check_code
from backend.jobs.submitting.refusals import SpecRefused, refuse_spec
from backend.jobs.submitting.resolving import resolve_spec
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)

MOST_VALIDATIONS: Final = 3
FORGOTTEN_AFTER: Final = timedelta(seconds=30)
MOST_AT_ONCE: Final = 10
ACTOR: Final = "validator"
Finding = tuple[str, str]
"""Failure class and message."""


def needs_validation(spec: JobSpec, *, start_from: str) -> bool:
    return bool(spec.environment.functions) or bool(start_from)


def forgotten_validations(now: datetime) -> list[str]:
    waiting = Job.objects.filter(state=JobState.VALIDATING, created_at__lt=now - FORGOTTEN_AFTER)
    return list(waiting.order_by("num_validations", "created_at").values_list("pk", flat=True)[:MOST_AT_ONCE])


def validate_job(job_id: str, *, now: datetime) -> None:
    begun = Job.objects.filter(pk=job_id, state=JobState.VALIDATING).update(num_validations=F("num_validations") + 1)
    if not begun:
        return
    finding = _validate(Job.objects.select_related("team", "pool").get(pk=job_id))
    with transaction.atomic():
        job = locked_job(job_id)
        if job.state != JobState.VALIDATING:
            return
        if finding is None:
            message = "Validated. Waiting for the scheduler."
            change_state(job, JobState.QUEUED, actor=ACTOR, now=now, reason="validated", message=message)
            return
        failure_class, message = finding
        log.info("refused job=%s class=%s message=%s", job_id, failure_class, message)
        change_state(
            job, JobState.FAILED, actor=ACTOR, now=now, reason="invalid", message=message, failure_class=failure_class
        )


def _validate(job: Job) -> Finding | None:
    if job.num_validations > MOST_VALIDATIONS:
        return "config", f"Validation was started {MOST_VALIDATIONS} times and never finished."
    spec = JobSpec.accepted(job.spec)
    try:
        refuse_spec(resolve_spec(spec, team=job.team, project=job.project_id, pool=job.pool))
    except SpecRefused as refusal:
        return "config", refusal.detail
    if job.start_from and checkpoint_of_team(job.team, job.start_from) is None:
        return "data", f"Checkpoint {job.start_from}, from which this job should start, no longer exists."
    if spec.environment.functions:
        wrong = check_code(spec.environment.code, spec.environment.functions)
        if wrong is not None:
            return "reward", wrong
    return None
