"""Jobs and their attempts and events, as a viewer may see them.

Invariant: an object of another team is answered exactly like one that does not exist.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import F, QuerySet, Sum
from django.db.models.functions import Coalesce

from backend.accounts.models import Team, User
from backend.errors import NotFound
from backend.jobs.models import Job, JobAttempt, JobEvent, JobState
from backend.pools.models import ReservationRole
from engine.spec.job import JobSpec

SCHEDULER_IS_LATE = timedelta(seconds=30)  # a round runs every 5 s, and stamps jobs every 10 s at the latest
_JOB_ID = re.compile(r"job_[0-9a-z]{20}", re.ASCII)


def jobs_visible_to(viewer: Team | User) -> QuerySet[Job]:
    """Newest first."""
    jobs = Job.objects.select_related("team", "project", "pool", "created_by").order_by("-created_at", "-id")
    if isinstance(viewer, Team):
        return jobs.filter(team=viewer)
    return jobs.filter(team__memberships__user=viewer)


def job_visible_to(viewer: Team | User, job_id: str) -> Job | None:
    if not _JOB_ID.fullmatch(job_id):  # Postgres rejects a NUL byte
        return None
    return jobs_visible_to(viewer).filter(pk=job_id).first()


def events_after(job: Job, seq: int) -> QuerySet[JobEvent]:
    """Oldest first, gapless: the events that a reader has not seen after `seq`."""
    return JobEvent.objects.filter(job=job, seq__gt=seq).order_by("seq")


def attempts_of(job: Job) -> QuerySet[JobAttempt]:
    return JobAttempt.objects.filter(job=job).order_by("n")


def starting_steps(jobs: Iterable[str]) -> dict[str, int]:
    """By job, the step of the checkpoint that its first attempt started from; 0: it started from the base model."""
    return dict(JobAttempt.objects.filter(job__in=jobs, n=1).values_list("job", "resume_step"))


class WatchedJob(NamedTuple):
    team_id: str
    cursor: int


def watched_jobs(job_ids: Iterable[str]) -> dict[str, WatchedJob]:
    """Those that exist, with their current cursor. The caller checks the team."""
    known = Job.objects.filter(pk__in=[job_id for job_id in job_ids if _JOB_ID.fullmatch(job_id)])
    return {pk: WatchedJob(team_id, cursor) for pk, team_id, cursor in known.values_list("pk", "team_id", "cursor")}


def the_job(viewer: Team | User, job_id: str) -> Job:
    """Raises `NotFound`."""
    job = job_visible_to(viewer, job_id)
    if job is None:
        raise NotFound("Job not found.")
    return job


def project_id_of(job_id: str) -> str | None:
    """For keys that are limited to a project. The route checks that the job belongs to the team."""
    return Job.objects.filter(pk=job_id).values_list("project_id", flat=True).first() if job_id.isidentifier() else None


def runtime_used_s(job: Job, *, before: int) -> float:
    """Runtime of ended attempts with a lower number, from their submission: time in the queue does not count."""
    over = JobAttempt.objects.filter(job=job, n__lt=before, submitted_at__isnull=False, ended_at__isnull=False)
    used: timedelta | None = over.aggregate(used=Sum(F("ended_at") - F("submitted_at")))["used"]
    return used.total_seconds() if used else 0.0


def replicas_granted(job: Job, spec: JobSpec) -> int:
    """Replicas covered by the job's live reservations; at least the fewest that it may start with."""
    kept = job.reservations.filter(released_at__isnull=True, reclaimed_at__isnull=True)
    live = kept.exclude(role=ReservationRole.TRAINER)
    devices: int = live.aggregate(devices=Sum("devices"))["devices"] or 0
    fewest = spec.placement.min_replicas or spec.rollout.replicas
    return min(spec.rollout.replicas, max(fewest, devices // spec.resources.devices_per_replica))


def faults_of(job: Job) -> QuerySet[JobEvent]:
    """Faults that the engine detected and handled, newest first."""
    return JobEvent.objects.filter(job=job, type="fault_detected").order_by("-seq")


def late_pools(now: datetime) -> QuerySet[Job, str]:
    """Ids of pools with a queued job that the scheduler has not evaluated for long."""
    seen = Coalesce("evaluated_at", "queued_at", "created_at")
    waiting = Job.objects.filter(state=JobState.QUEUED).annotate(seen=seen).filter(seen__lt=now - SCHEDULER_IS_LATE)
    return waiting.values_list("pool_id", flat=True).distinct()
