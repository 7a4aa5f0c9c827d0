"""Takes devices back: pauses victims, resizes jobs with elastic replicas, keeps freed devices for their claim.

    round n: victim ──▶ pausing, claim written ─────┐         (the victim drains, writes its checkpoint, releases)
    round m: the claim's job gets the devices first ◀┘

The caller holds the pool row's lock and has decided. Every function skips a job that has moved on meanwhile: its
devices are free or being released, and the next round sees that.
"""

import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from backend.jobs.attempts.ending import PREEMPTED
from backend.jobs.control.pausing import begin_pause
from backend.jobs.control_requests import ask_driver, close_requests, jobs_with_requests
from backend.jobs.lifecycle import record_event
from backend.jobs.models import Job, JobState
from backend.jobs.queue.starting import add_replicas
from backend.pools.decision.views import Preemption, Resize
from backend.pools.models import Claim, Reservation, ReservationRole, ResourcePool
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)

ACTOR = "scheduler"
PAUSABLE = (JobState.STARTING, JobState.RUNNING, JobState.RECOVERING)
# A replica hands its trajectories over within seconds. An engine that has not answered by then never will, and the jobs
# that wait for the devices must not wait forever.
RECLAIM_DEADLINE = timedelta(minutes=2)


def pause_victim(preemption: Preemption, *, now: datetime) -> bool:
    job = _lock(preemption.victim)
    if job is None or job.state not in PAUSABLE:
        return False
    message = "A job ahead of it needs the devices. This job resumes when devices are free."
    begin_pause(job, reason=PREEMPTED, message=message, actor=ACTOR, now=now)
    log.info("preempted job=%s", job.pk)
    return True


def take_replicas(resize: Resize, *, now: datetime) -> bool:
    """Requests that the engine continue with fewer replicas; reservations stay until it confirms."""
    job = _lock(resize.job)
    if job is None or job.state not in PAUSABLE:
        return False
    kept = Reservation.objects.filter(
        job=job, role=ReservationRole.ELASTIC, released_at__isnull=True, reclaimed_at__isnull=True
    ).order_by("-slot")
    surplus = [one.pk for one in kept[: max(0, kept.count() - resize.replicas)]]
    if not surplus:
        return False
    Reservation.objects.filter(pk__in=surplus).update(reclaimed_at=now)
    _request_replicas(job, resize.replicas, now=now)
    record_event(job, "replicas_reclaimed", actor=ACTOR, now=now, data={"replicas": len(surplus)})
    return True


def give_replicas(resize: Resize, pool: ResourcePool, *, now: datetime) -> bool:
    job = _lock(resize.job)
    if job is None or job.state != JobState.RUNNING or jobs_with_requests([job.pk]):
        return False
    live = Reservation.objects.filter(job=job, role=ReservationRole.ELASTIC, released_at__isnull=True)
    more = resize.replicas - live.filter(reclaimed_at__isnull=True).count()
    if more <= 0:
        return False
    spec = JobSpec.accepted(job.spec)
    add_replicas(job, pool, spec, more, borrowed=resize.borrowed, attempt=job.num_attempts, now=now)
    _request_replicas(job, resize.replicas, now=now)
    record_event(job, "replicas_granted", actor=ACTOR, now=now, data={"replicas": more})
    return True


def release_overdue(pool: ResourcePool, *, now: datetime) -> int:
    """Releases replicas reclaimed long ago from engines that do not answer."""
    overdue = Reservation.objects.filter(
        pool=pool, released_at__isnull=True, reclaimed_at__isnull=False, reclaimed_at__lte=now - RECLAIM_DEADLINE
    )
    jobs = list(overdue.order_by("job_id").values_list("job_id", flat=True).distinct())
    released = 0
    for job_id in jobs:
        if _lock(job_id) is None:
            continue
        released += overdue.filter(job_id=job_id).update(released_at=now)
        close_requests(job_id, kind="resize", now=now)
        log.warning("released without the engine's answer job=%s", job_id)
    return released


def keep_claims(pool: ResourcePool, claims: Mapping[str, int], *, still: Collection[str], now: datetime) -> None:
    """`still`: claims of jobs that were to start but could not be written in this round."""
    kept = dict(Claim.objects.filter(pool=pool).values_list("job_id", "devices"))
    Claim.objects.filter(job_id__in=set(kept) - set(claims) - set(still)).delete()
    fresh = {job: devices for job, devices in claims.items() if job not in kept}
    Claim.objects.bulk_create(
        Claim(job_id=job, pool=pool, devices=devices, created_at=now) for job, devices in fresh.items()
    )
    for job, devices in claims.items():
        if kept.get(job, devices) != devices:
            Claim.objects.filter(job_id=job).update(devices=devices)


def _request_replicas(job: Job, elastic: int, *, now: datetime) -> None:
    spec = JobSpec.accepted(job.spec)
    replicas = (spec.placement.min_replicas or spec.rollout.replicas) + elastic
    ask_driver(job, "resize", replicas=replicas, now=now)


def _lock(job_id: str) -> Job | None:
    """Does not wait: a job locked at this moment is handled in the next round."""
    return Job.objects.select_for_update(of=("self",), no_key=True, skip_locked=True).filter(pk=job_id).first()
