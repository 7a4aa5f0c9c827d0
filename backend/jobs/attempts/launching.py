"""Carries an attempt from the database to a submission on the engine, and stops it again.

Invariants:
- only the job's live attempt is launched; if it was ended meanwhile, it is stopped again;
- an attempt is launched, polled and stopped on its pool's Ray;
- no lock is held during calls to the engine;
- launching and stopping are idempotent;
- the cluster's answer about a killed job is in its event log: no engine reports how it ended.
"""

import logging
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db import transaction
from pydantic import ValidationError

from backend.clock import database_now
from backend.jobs.attempts.asset_catalog import asset_catalog
from backend.jobs.attempts.ending import KILLED, NOT_UNDERSTOOD, end_unlaunchable
from backend.jobs.attempts.evidence import LONGEST_TAIL
from backend.jobs.attempts.failures import add_log_tail
from backend.jobs.attempts.launcher import Rays
from backend.jobs.attempts.tokens import token_of
from backend.jobs.generation.left_behind import has_unknown_driver
from backend.jobs.lifecycle import locked_job, next_cursor, record_event
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.outbox import enqueue
from backend.jobs.selectors import replicas_granted, runtime_used_s
from backend.pools.clusters.addresses import terms_of
from backend.pools.clusters.dashboard import LauncherError
from backend.pools.clusters.drains import drained_of, ids_to_avoid
from backend.pools.models import ResourcePool
from engine.spec.control import AttemptOrder
from engine.spec.job import ACCEPTED, JobSpec

log = logging.getLogger(__name__)

LAUNCHABLE = (JobState.STARTING, JobState.RECOVERING)
LEAST_RUNTIME_S = 1.0  # for a job paused in its last second: its engine ends it with `timeout`
ENGINE_AWAY = "The cluster cannot be reached right now. The job starts as soon as it responds."
ENGINE_HAS_IT = "The cluster accepted the job and is setting it up."


def launch_attempt(job_id: str, rays: Rays) -> None:
    attempt = _awaiting_launch(job_id)
    if attempt is None:
        return
    if has_unknown_driver(attempt):  # before the restore: a second driver must not get the same fence
        _mark_submitted(attempt)
        return
    try:
        avoiding = _hosts_to_avoid(attempt.job.pool, rays)
    except LauncherError:
        _set_message(job_id, ENGINE_AWAY)
        raise  # the outbox retries
    try:
        order = order_for(attempt, avoiding=avoiding)
    except ValidationError as failure:
        log.error("no order job=%s attempt=%d: %s", job_id, attempt.n, failure)
        with transaction.atomic():
            job = locked_job(job_id)
            if _awaiting_launch(job_id) == attempt:  # neither job nor attempt ended meanwhile
                end_unlaunchable(job, attempt, NOT_UNDERSTOOD, now=database_now())
        return
    try:
        rays(attempt.job.pool).launch(order, attempt.submission_id)
    except LauncherError:
        _set_message(job_id, ENGINE_AWAY)
        raise  # the outbox retries
    log.info("launched job=%s attempt=%d submission=%s", job_id, attempt.n, attempt.submission_id)
    _mark_submitted(attempt)


def stop_superseded(job_id: str, rays: Rays) -> None:
    """Stops every submission of the job whose attempt has ended."""
    stopped: list[int] = []
    ended = JobAttempt.objects.filter(job_id=job_id, ended_at__isnull=False)
    for attempt in ended.select_related("job__pool"):
        launcher, submission_id = rays(attempt.job.pool), attempt.submission_id
        if launcher.status(submission_id).is_live:
            launcher.stop(submission_id)
            stopped.append(attempt.n)
            log.info("stopped superseded job=%s submission=%s", job_id, submission_id)
    _record_if_killed(job_id, stopped)


def _record_if_killed(job_id: str, stopped: Sequence[int]) -> None:
    """The job did not wait for its engine: the cluster's answer is all that is known of its end."""
    with transaction.atomic():
        job = locked_job(job_id)
        if not job.is_terminal or job.reason != KILLED or job.events.filter(type="cluster_stopped").exists():
            return
        numbers = " and ".join(str(n) for n in stopped)
        message = f"Sent a stop request for attempt {numbers} to the cluster." if stopped else "Nothing was running."
        record_event(job, "cluster_stopped", actor="launcher", now=database_now(), message=message)


def gather_evidence(job_id: str, rays: Rays) -> None:
    """Stores the last lines of a failed attempt's log while Ray still has them."""
    failed = JobAttempt.objects.filter(job_id=job_id).exclude(failure_class="").select_related("job__pool")
    last = failed.order_by("-n").first()
    if last is not None and not last.evidence.get("log_tail"):
        add_log_tail(last, rays(last.job.pool).log_tail(last.submission_id, max_chars=LONGEST_TAIL))


def _hosts_to_avoid(pool: ResourcePool, rays: Rays) -> Sequence[str]:
    """Drained hosts by their current Ray ids; Ray is not called if none is drained."""
    return ids_to_avoid(pool, rays(pool).hosts()) if drained_of(pool) else ()


def order_for(attempt: JobAttempt, *, avoiding: Sequence[str] = ()) -> AttemptOrder:
    spec = JobSpec.accepted(attempt.job.spec)
    used_s = runtime_used_s(attempt.job, before=attempt.n)
    order: dict[str, Any] = {
        "job": attempt.job_id,
        "attempt": attempt.n,
        "fence": attempt.fence,
        "spec": spec,
        "control_url": settings.ENVIRONMENT.control_url,
        "token": token_of(attempt),
        "resume_from": attempt.resume_from or None,
        "replicas": replicas_granted(attempt.job, spec),
        "assets": asset_catalog().order_for(attempt.job, attempt=attempt.n, fence=attempt.fence),
        "runtime_left_s": max(LEAST_RUNTIME_S, attempt.job.max_runtime_s - used_s),
        "pool": terms_of(attempt.job.pool, avoiding=avoiding),
    }
    return AttemptOrder.model_validate(order, context=ACCEPTED)


def _awaiting_launch(job_id: str) -> JobAttempt | None:
    waiting = JobAttempt.objects.filter(job_id=job_id, submitted_at__isnull=True, ended_at__isnull=True)
    return waiting.filter(job__state__in=LAUNCHABLE).select_related("job__pool").first()


def _mark_submitted(attempt: JobAttempt) -> None:
    now = database_now()
    with transaction.atomic():
        job = locked_job(attempt.job_id)
        JobAttempt.objects.filter(pk=attempt.pk, submitted_at__isnull=True).update(submitted_at=now)
        if JobAttempt.objects.filter(pk=attempt.pk, ended_at__isnull=False).exists():
            enqueue("stop", job.pk, now)  # it was ended during the call
    _set_message(attempt.job_id, ENGINE_HAS_IT)


def _set_message(job_id: str, message: str) -> None:
    """Shows a message while the job waits for its launch. Not an event: an outage would record hundreds."""
    with transaction.atomic():
        job = locked_job(job_id)
        if job.state in LAUNCHABLE and job.message != message:
            Job.objects.filter(pk=job.pk).update(message=message)
            next_cursor(job)
