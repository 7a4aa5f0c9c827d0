"""Control requests: each to a job's running attempt, from the asking to the driver's acknowledgement.

    ask_driver ──▶ row ──▶ answer to a heartbeat ──▶ driver ──▶ fact ──▶ acknowledged, or closed with its attempt

Invariants:
- at most one of a kind is open of a job: asking again for the same changes nothing, another size replaces the older;
- a row holds only what the driver takes (`engine.spec.control.ControlRequest`); the database checks it;
- what was asked of an attempt that is over is not asked of the next one.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Literal

from django.db.models import QuerySet

from backend.ids import new_id
from backend.jobs.models import ControlRequest, Job


def open_requests() -> QuerySet[ControlRequest]:
    return ControlRequest.objects.filter(acknowledged_at__isnull=True)


def jobs_asked(job_ids: Collection[str]) -> set[str]:
    """Those of whose drivers something is wanted already."""
    return set(open_requests().filter(job_id__in=job_ids).values_list("job_id", flat=True))


def ask_driver(
    job: Job, kind: Literal["cancel", "pause", "resize"], *, replicas: int | None = None, now: datetime
) -> None:
    """Of a locked job. The driver hears of it with its next heartbeat."""
    of_kind = open_requests().filter(job=job, kind=kind)
    if of_kind.filter(replicas=replicas).exists():
        return
    of_kind.update(acknowledged_at=now)
    ControlRequest.objects.create(id=new_id("req"), job=job, kind=kind, replicas=replicas, created_at=now)


def acknowledge_request(job: Job, request_id: str, *, now: datetime) -> bool:
    """True if it was open."""
    return open_requests().filter(job=job, pk=request_id).update(acknowledged_at=now) == 1


def close_requests(job_id: str, *, kind: str | None = None, now: datetime) -> None:
    """All, or those of a kind: nobody waits for an answer any more."""
    waiting = open_requests().filter(job_id=job_id)
    (waiting if kind is None else waiting.filter(kind=kind)).update(acknowledged_at=now)
