"""What a round of reconciliation looks at: every job that holds devices, with its attempt that has not ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef, Prefetch, Subquery

from backend.jobs.models import HOLDING_STATES, Job, JobAttempt, JobEvent, JobState, OutboxMessage
from backend.reconcile.verdicts import JobView

NEVER_S = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job as it was read; whoever acts on it later checks that it is still so."""

    job: Job
    attempt: JobAttempt | None
    view: JobView


def held_jobs(now: datetime) -> Iterator[Held]:
    launches = OutboxMessage.objects.filter(topic="launch", key=OuterRef("pk"))
    stops = JobEvent.objects.filter(job=OuterRef("pk"), to_state=JobState.STOPPING).order_by("-seq")
    live = JobAttempt.objects.filter(ended_at__isnull=True)
    jobs = (
        Job.objects.filter(state__in=HOLDING_STATES)
        .annotate(stopping_at=Subquery(stops.values("at")[:1]), launch_waits=Exists(launches))
        .prefetch_related(Prefetch("attempts", queryset=live, to_attr="live_attempts"))
        .order_by("created_at")
    )
    for job in jobs:
        attempt = job.live_attempts[0] if job.live_attempts else None
        yield Held(job=job, attempt=attempt, view=_view(job, attempt, now))


def _view(job: Job, attempt: JobAttempt | None, now: datetime) -> JobView:
    annotated = vars(job)
    submitted_at = attempt.submitted_at if attempt else None
    last_word = (attempt.last_seen_at if attempt else None) or submitted_at
    return JobView(
        state=job.state,
        has_attempt=attempt is not None,
        submitted=submitted_at is not None,
        launch_waits=annotated["launch_waits"],
        age_s=_since(attempt.created_at if attempt else None, now),
        silent_s=_since(last_word, now),
        stopping_s=_since(annotated["stopping_at"], now),
        running_s=_since(job.started_at or submitted_at, now),
        max_runtime_s=job.max_runtime_s,
    )


def _since(moment: datetime | None, now: datetime) -> float:
    return (now - moment).total_seconds() if moment else NEVER_S
