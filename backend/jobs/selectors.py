"""Jobs and what belongs to them, as somebody may see them.

Invariant: what another team owns is answered exactly like what does not exist.
"""

import re

from django.db.models import QuerySet

from backend.accounts.models import Team, User
from backend.errors import NotFound
from backend.jobs.models import Job, JobAttempt, JobEvent

_JOB_ID = re.compile(r"job_[0-9a-z]{20}", re.ASCII)


def jobs_visible_to(viewer: Team | User) -> QuerySet[Job]:
    """Newest first."""
    jobs = Job.objects.select_related("team", "project", "pool", "created_by").order_by("-created_at", "-id")
    if isinstance(viewer, Team):
        return jobs.filter(team=viewer)
    return jobs.filter(team__memberships__user=viewer)


def job_visible_to(viewer: Team | User, job_id: str) -> Job | None:
    if not _JOB_ID.fullmatch(job_id):  # Postgres would choke on a NUL
        return None
    return jobs_visible_to(viewer).filter(pk=job_id).first()


def events_after(job: Job, seq: int) -> QuerySet[JobEvent]:
    """Oldest first, gapless: what a reader who has seen up to `seq` has yet to see."""
    return JobEvent.objects.filter(job=job, seq__gt=seq).order_by("seq")


def attempts_of(job: Job) -> QuerySet[JobAttempt]:
    return JobAttempt.objects.filter(job=job).order_by("n")


def the_job(viewer: Team | User, job_id: str) -> Job:
    """Raises `NotFound`."""
    job = job_visible_to(viewer, job_id)
    if job is None:
        raise NotFound("There is no job with this id.")
    return job
