"""The jobs of a round of reconciliation: every job that holds devices, with its live attempt."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Exists, F, OuterRef, Prefetch, Q, Subquery, Sum

from backend.jobs.models import HOLDING_STATES, Job, JobAttempt, JobEvent, OutboxMessage
from backend.reconcile.judging import TURNING_STATES, JobView, is_past_base_deadline
from backend.reconcile.size_allowance import size_extra_s

NEVER_S = 0.0
AHEAD: Final = timedelta(minutes=1)
"""A heartbeat stored between the round's `now` and the read of its row is slightly in the future."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job as it was read; later actions check that it has not changed."""

    job: Job
    attempt: JobAttempt | None
    view: JobView


def held_jobs(now: datetime, listening_since: datetime) -> Iterator[Held]:
    """`listening_since`: a driver's earlier silence does not count."""
    launches = OutboxMessage.objects.filter(topic="launch", key=OuterRef("pk"))
    ends = JobEvent.objects.filter(job=OuterRef("pk"), to_state=OuterRef("state")).order_by("-seq")
    has_ended = Q(attempts__submitted_at__isnull=False, attempts__ended_at__isnull=False)
    ran = Sum(F("attempts__ended_at") - F("attempts__submitted_at"), filter=has_ended)
    live = JobAttempt.objects.filter(ended_at__isnull=True)
    jobs = (
        Job.objects.filter(state__in=HOLDING_STATES)
        .select_related("pool")
        .annotate(in_state_since=Subquery(ends.values("at")[:1]), launch_waits=Exists(launches), ran=ran)
        .prefetch_related(Prefetch("attempts", queryset=live, to_attr="live_attempts"))
        .order_by("created_at")
    )
    for job in jobs:
        attempt = job.live_attempts[0] if job.live_attempts else None
        yield Held(job=job, attempt=attempt, view=_view(job, attempt, now, listening_since))


def _view(job: Job, attempt: JobAttempt | None, now: datetime, listening_since: datetime) -> JobView:
    annotated = vars(job)
    submitted_at = attempt.submitted_at if attempt else None
    seen_at = (attempt.last_seen_at if attempt else None) or submitted_at
    moved_at = (attempt.moved_at if attempt else None) or seen_at
    listened_s = _since(listening_since, now)

    def silence_s(moment: datetime | None) -> float:
        """A time further ahead than `AHEAD` was written before the clock was set back, and is ignored."""
        is_of_another_clock = moment is not None and moment - now > AHEAD
        return listened_s if is_of_another_clock else max(0.0, _since(moment, now))

    view = JobView(
        state=job.state,
        has_attempt=attempt is not None,
        submitted=submitted_at is not None,
        launch_waits=annotated["launch_waits"],
        age_s=_since(attempt.created_at if attempt else None, now),
        silent_s=silence_s(seen_at),
        unheard_s=min(silence_s(seen_at), listened_s),
        in_state_s=_since(annotated["in_state_since"], now),
        submitted_s=min(_since(submitted_at, now), listened_s),
        running_s=_since(submitted_at, now) + (annotated["ran"].total_seconds() if annotated["ran"] else 0.0),
        max_runtime_s=job.max_runtime_s,
        still_s=min(silence_s(moved_at), listened_s) if job.state in TURNING_STATES else 0.0,
        is_stalled=job.stalled_since is not None,
        moves_again=job.stalled_since is not None and moved_at is not None and moved_at > job.stalled_since,
    )
    return replace(view, size_extra_s=size_extra_s(job)) if is_past_base_deadline(view) else view


def _since(moment: datetime | None, now: datetime) -> float:
    return (now - moment).total_seconds() if moment else NEVER_S
