"""Control requests to a job's running attempt, from the request to the driver's acknowledgement.

    ask_driver ──▶ row ──▶ answer to a heartbeat ──▶ driver ──▶ fact ──▶ acknowledged, or closed with its attempt

Invariants:
- a job has at most one open request of each kind: the same request again is a no-op, another size replaces the older;
- a row holds only what the driver accepts (`engine.spec.control.ControlRequest`); the database checks it;
- requests to an attempt that has ended do not carry over to the next one.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Literal

from django.db.models import QuerySet

from backend.ids import new_id
from backend.jobs.models import ControlRequest, Job


def open_requests() -> QuerySet[ControlRequest]:
    return ControlRequest.objects.filter(acknowledged_at__isnull=True)


def jobs_with_requests(job_ids: Collection[str]) -> set[str]:
    """Ids of those jobs whose drivers have an open request."""
    return set(open_requests().filter(job_id__in=job_ids).values_list("job_id", flat=True))


def ask_driver(
    job: Job, kind: Literal["cancel", "pause", "resize"], *, replicas: int | None = None, now: datetime
) -> None:
    """Queues a request of a locked job. The driver gets it with its next heartbeat."""
    of_kind = open_requests().filter(job=job, kind=kind)
    if of_kind.filter(replicas=replicas).exists():
        return
    of_kind.update(acknowledged_at=now)
    ControlRequest.objects.create(id=new_id("req"), job=job, kind=kind, replicas=replicas, created_at=now)


def acknowledge_request(job: Job, request_id: str, *, now: datetime) -> bool:
    """True if the request was open."""
    return open_requests().filter(job=job, pk=request_id).update(acknowledged_at=now) == 1


def close_requests(job_id: str, *, kind: str | None = None, now: datetime) -> None:
    """Closes all open requests of the job, or those of one kind."""
    waiting = open_requests().filter(job_id=job_id)
    (waiting if kind is None else waiting.filter(kind=kind)).update(acknowledged_at=now)
