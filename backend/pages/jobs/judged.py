"""Verdicts on many jobs at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from backend.jobs.models import Job
from backend.verdicts.findings import FindingOut
from backend.verdicts.models import JobVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    first: FindingOut
    at: datetime


def ill_jobs() -> QuerySet[JobVerdict, str]:
    """Ids of jobs with an alarm, for a query of jobs."""
    return JobVerdict.objects.exclude(alarms=[]).values_list("job_id", flat=True)


def jobs_judged(kind: str) -> QuerySet[JobVerdict, str]:
    """Ids of jobs whose first verdict this is."""
    return JobVerdict.objects.filter(kind=kind).values_list("job_id", flat=True)


def judged_of(jobs: Sequence[Job]) -> dict[str, Judged]:
    """By job id, for jobs with a verdict."""
    rows = JobVerdict.objects.filter(job__in=jobs)
    return {
        row.job_id: Judged(first=FindingOut.model_validate(row.found[0]), at=row.judged_at) for row in rows if row.found
    }
