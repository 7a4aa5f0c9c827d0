"""The moments of jobs that split the time of their devices, as the control plane recorded them.

Invariants:
- every moment is by the control plane's clock: when a fact arrived, not when the engine claims that it happened;
- the number of queries is fixed, however many jobs are read.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from django.db.models import Q

from backend.checkpoints.models import Checkpoint
from backend.jobs.models import Job, JobAttempt, JobEvent, JobState
from backend.usage.models import AttemptCredit
from backend.usage.split import AttemptView, Ending, Shares

ENDED_WELL: Final = frozenset({"succeeded", "cancelled", "paused", "queued"})
"""Outcomes of attempts that lost nothing: where the job went. Others (lost, superseded) are platform faults."""
CREDITED_CLASSES: Final = frozenset({"infrastructure"})
"""Failures with a named cause of the platform's. Of a `platform` failure no cause is known: a job may produce it."""
LIMIT_CLASSES: Final = frozenset({"timeout", "budget"})
_ENDS: Final = ("trained", "filtered", "dropped_stale", "failed")
_KINDS_OF_EVENT: Final = ("submitted", "state_changed", "pipeline_ready", "run_finished")


@dataclass(slots=True, kw_only=True)
class Timeline:
    job: Job
    submitted_by: str = ""
    """Id of the API key, or empty."""
    attempts: list[AttemptView] = field(default_factory=list)


def timelines_of(job_ids: Iterable[str], *, credited: Collection[int] | None = None) -> Mapping[str, Timeline]:
    """`credited`: attempts credited by operators, by primary key; None: as they are now."""
    ids = set(job_ids)
    if credited is None:
        active = AttemptCredit.objects.filter(attempt__job_id__in=ids, taken_back_at__isnull=True)
        credited = set(active.values_list("attempt_id", flat=True))
    jobs = {job.pk: job for job in Job.objects.filter(pk__in=ids).defer("spec")}
    attempts: dict[str, list[JobAttempt]] = defaultdict(list)
    for attempt in JobAttempt.objects.filter(job_id__in=ids).order_by("n"):
        attempts[attempt.job_id].append(attempt)
    events: dict[str, list[JobEvent]] = defaultdict(list)
    rows = JobEvent.objects.filter(job_id__in=ids, type__in=_KINDS_OF_EVENT).filter(
        ~Q(type="state_changed") | Q(to_state__in=(JobState.RUNNING, JobState.PAUSING, JobState.STOPPING))
    )
    for event in rows.order_by("job_id", "seq"):
        events[event.job_id].append(event)
    kept: dict[tuple[str, int], datetime] = {}
    saved = Checkpoint.objects.filter(job_id__in=ids).exclude(state="corrupt").order_by("created_at")
    for job_id, n, at in saved.values_list("job_id", "attempt", "created_at"):
        kept[job_id, n] = at
    return {job_id: _timeline(job, attempts[job_id], events[job_id], kept, credited) for job_id, job in jobs.items()}


def _timeline(
    job: Job,
    attempts: Sequence[JobAttempt],
    events: Sequence[JobEvent],
    kept: Mapping[tuple[str, int], datetime],
    credited: Collection[int],
) -> Timeline:
    submitter = next((event.actor for event in events if event.type == "submitted"), "")
    line = Timeline(job=job, submitted_by=submitter.partition(":")[2] if submitter.startswith("key:") else "")
    last_ledger: Mapping[str, int] = {}
    for attempt in attempts:
        view = AttemptView(
            began_at=attempt.created_at,
            ready_at=next((event.at for event in events if _is_ready(event, attempt)), None),
            draining_at=next((event.at for event in events if _drains(event, attempt)), None),
            kept_at=kept.get((job.pk, attempt.n)),
            ended_at=attempt.ended_at,
            ending=ending_of(job, attempt, is_credited=attempt.pk in credited),
        )
        ledger = next((event.data.get("ledger") for event in events if _is_finish(event, attempt)), None)
        if isinstance(ledger, dict):
            view, last_ledger = replace(view, shares=_shares(ledger, last_ledger)), ledger
        line.attempts.append(view)
    return line


def _is_ready(event: JobEvent, attempt: JobAttempt) -> bool:
    is_start = event.type == "pipeline_ready" or event.to_state == JobState.RUNNING
    return is_start and event.actor == f"engine:{attempt.n}"


def _drains(event: JobEvent, attempt: JobAttempt) -> bool:
    is_its_time = event.at >= attempt.created_at and (attempt.ended_at is None or event.at <= attempt.ended_at)
    return is_its_time and event.to_state in (JobState.PAUSING, JobState.STOPPING)


def _is_finish(event: JobEvent, attempt: JobAttempt) -> bool:
    return event.type == "run_finished" and event.actor == f"engine:{attempt.n}"


def failure_class_of(job: Job, attempt: JobAttempt) -> str:
    """The attempt's; the failed job's for a last attempt without one; "" without a failure."""
    is_last = attempt.n == job.num_attempts and job.state == JobState.FAILED
    return attempt.failure_class or (job.failure_class if is_last else "")


def ending_of(job: Job, attempt: JobAttempt, *, is_credited: bool) -> Ending:
    """By the class of its failure; `is_credited`: by an operator. An attempt that ended without a failure and
    without a good outcome was lost."""
    failure_class = failure_class_of(job, attempt)
    if attempt.ended_at is None or failure_class in LIMIT_CLASSES:
        return Ending.WELL
    if failure_class:
        is_ours = is_credited or failure_class in CREDITED_CLASSES
        return Ending.PLATFORM_FAULT if is_ours else Ending.OWN_FAULT
    return Ending.WELL if attempt.outcome in ENDED_WELL else Ending.PLATFORM_FAULT


def _shares(ledger: Mapping[str, int], before: Mapping[str, int]) -> Shares:
    """The ledger counts on across attempts; a ledger below the previous one started again from zero."""

    def since(base: Mapping[str, int]) -> dict[str, int]:
        return {end: int(ledger.get(end, 0)) - int(base.get(end, 0)) for end in (*_ENDS, "rolled_back")}

    counts = since(before)
    if min(counts[end] for end in _ENDS) < 0:
        counts = since({})
    redone = max(0, counts["rolled_back"])
    total = sum(counts[end] for end in _ENDS) + redone
    return Shares(dropped=counts["dropped_stale"], redone=redone, total=total)
