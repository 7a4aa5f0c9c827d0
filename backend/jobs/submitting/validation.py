"""Validation of a job before it waits for devices: all that is too slow or too risky to look at in a request.

    submit ──▶ validating ──▶ queued
                   └────────▶ failed: config (can never start), reward (the file of its own), data (its checkpoint)

Invariants:
- a job with nothing to look at is queued at once;
- each beginning is counted before anything is read: a spec that kills whoever looks at it is refused the third time;
- twice is as good as once: what is not `validating` any more is left alone.
"""

import logging
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import F

from backend.jobs.attempts.resume_points import checkpoint_of_team
from backend.jobs.lifecycle import advance, locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.submitting.code_check import what_is_wrong
from backend.jobs.submitting.refusals import SpecRefused, refuse_spec
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)

MOST_VALIDATIONS: Final = 3
FORGOTTEN_AFTER: Final = timedelta(seconds=30)
MOST_AT_ONCE: Final = 10
ACTOR: Final = "validator"
Finding = tuple[str, str]
"""Failure class and sentence."""


def needs_validation(spec: JobSpec, *, start_from: str) -> bool:
    return bool(spec.environment.functions) or bool(start_from)


def forgotten_validations(now: datetime) -> list[str]:
    waiting = Job.objects.filter(state=JobState.VALIDATING, created_at__lt=now - FORGOTTEN_AFTER)
    return list(waiting.order_by("num_validations", "created_at").values_list("pk", flat=True)[:MOST_AT_ONCE])


def validate_job(job_id: str, *, now: datetime) -> None:
    begun = Job.objects.filter(pk=job_id, state=JobState.VALIDATING).update(num_validations=F("num_validations") + 1)
    if not begun:
        return
    finding = _look_at(Job.objects.select_related("team", "pool").get(pk=job_id))
    with transaction.atomic():
        job = locked_job(job_id)
        if job.state != JobState.VALIDATING:
            return
        if finding is None:
            message = "Validated; the scheduler has not looked at this job yet."
            advance(job, JobState.QUEUED, actor=ACTOR, now=now, reason="validated", message=message)
            return
        failure_class, message = finding
        log.info("refused job=%s class=%s message=%s", job_id, failure_class, message)
        advance(
            job, JobState.FAILED, actor=ACTOR, now=now, reason="invalid", message=message, failure_class=failure_class
        )


def _look_at(job: Job) -> Finding | None:
    if job.num_validations > MOST_VALIDATIONS:
        return "config", f"Validating this job was begun {MOST_VALIDATIONS} times and never came to an end."
    spec = JobSpec.accepted(job.spec)
    try:
        refuse_spec(spec, job.team, job.pool)
    except SpecRefused as refusal:
        return "config", refusal.detail
    if job.start_from and checkpoint_of_team(job.team, job.start_from) is None:
        return "data", f"The checkpoint {job.start_from} that this job was to start from is gone."
    if spec.environment.functions:
        wrong = what_is_wrong(spec.environment.code, spec.environment.functions)
        if wrong is not None:
            return "reward", wrong
    return None
