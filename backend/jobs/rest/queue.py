"""REST: a pool's queue, and a job's place in it."""

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import BaseModel, Field

from backend.accounts.keys.bearer import MAY_READ, caller_of
from backend.api.pagination import DEFAULT_LIMIT, Limit
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.clock import database_now
from backend.jobs.attempts.failures import FailureExplained, explain_failure
from backend.jobs.models import Job, JobState
from backend.jobs.queue.explain import WaitExplained, explain_wait
from backend.jobs.queue.team_view import ANOTHER_TEAM, Holding, InLine, QueueView, queue_view_of
from backend.jobs.selectors import the_job
from backend.pools.decision.views import WaitingReason
from backend.pools.models import ResourcePool
from backend.pools.selectors import the_pool

router = Router(tags=["Queue"])


class HolderOut(BaseModel):
    """A job that holds devices. Jobs of other teams have no id and no name."""

    team: str = Field(description=f"The team's name; `{ANOTHER_TEAM}` for all others.")
    job: str | None
    name: str | None
    state: JobState
    devices: int = Field(description="All devices that it holds.")
    elastic_devices: int = Field(description="Elastic devices among them, which are taken back first.")
    preemptible: bool
    since: datetime


class InLineOut(BaseModel):
    """A queued job. Jobs of other teams have no id, no name and no reason."""

    position: int = Field(description="1 is next.")
    team: str
    job: str | None
    name: str | None
    devices: int = Field(description="Devices that must be free at once.")
    reason: WaitingReason | None = Field(description="Null for jobs of other teams.")
    queued_at: datetime


class QueueOut(BaseModel):
    pool: str
    name: str
    capacity: int
    is_open: bool
    free: int
    drained: int = Field(description="Devices of the capacity on hosts that are being drained; no job starts there.")
    used: int = Field(description="Devices used by the caller's team.")
    used_by_others: int
    share: float = Field(description="What the team borrows of all lent devices, by its weight; the lowest goes first.")
    history: float = Field(description="Past GPU-seconds of the team, decaying with age; breaks ties of share.")
    evaluated_at: datetime | None = Field(description="Older than a minute: the scheduler is late. Null: not yet.")
    holders: list[HolderOut]
    waiting: list[InLineOut]
    num_waiting: int
    has_more: bool


class SmallerOut(BaseModel):
    devices: int
    fewer: int
    replicas: int


class WaitOut(BaseModel):
    reason: WaitingReason
    message: str
    position: int | None
    starts_at: datetime | None = Field(
        description="Estimate, if every running job takes its maximum runtime and no other job comes."
    )
    starts_with_fewer: SmallerOut | None = Field(
        description="The largest smaller size with which a replacement job would start now."
    )
    starts_as_preemptible: bool = Field(description="A preemptible replacement job would start now.")


class ExplainOut(BaseModel):
    """A job's situation: `waiting` if queued, `failure` if failed; `message` summarizes it in either case."""

    job: str
    state: JobState
    reason: str
    message: str
    evaluated_at: datetime | None
    waiting: WaitOut | None = None
    failure: FailureExplained | None = None


@router.get(
    "/pools/{pool_id}/queue", auth=MAY_READ, response={200: QueueOut} | problems(404, 422), summary="Get a pool's queue"
)
def queue(
    request: HttpRequest,
    pool_id: PathId,
    mine: Annotated[bool, Query(description="Only the team's own jobs, with their true positions.")] = False,
    limit: Limit = DEFAULT_LIMIT,
) -> QueueOut:
    """Holders of devices, then queued jobs in the scheduler's order, up to `limit`."""
    team = caller_of(request).team
    pool = the_pool(pool_id, of=team)
    seen = queue_view_of(team, pool, only_mine=mine, limit=limit, now=database_now())
    return _represent_queue(pool, seen, team.name)


@router.get(
    "/jobs/{job_id}/explain", auth=MAY_READ, response={200: ExplainOut} | problems(404), summary="Explain a job"
)
def explain(request: HttpRequest, job_id: PathId) -> ExplainOut:
    """For a queued job: why it waits, when it would start, and what would let it start now. For a failed one: why."""
    job = the_job(caller_of(request).team, job_id)
    wait = explain_wait(job, now=database_now()) if job.state == JobState.QUEUED else None
    return ExplainOut(
        job=job.pk,
        state=JobState(job.state),
        reason=wait.reason if wait else job.reason,
        message=wait.message if wait else job.message,
        evaluated_at=job.evaluated_at if job.state == JobState.QUEUED else None,
        waiting=_represent_wait(wait) if wait else None,
        failure=explain_failure(job) if job.state == JobState.FAILED else None,
    )


def _represent_wait(wait: WaitExplained) -> WaitOut:
    less = wait.smaller
    return WaitOut(
        reason=wait.reason,
        message=wait.message,
        position=wait.position,
        starts_at=wait.starts_at,
        starts_with_fewer=SmallerOut(devices=less.devices, fewer=less.fewer, replicas=less.replicas) if less else None,
        starts_as_preemptible=wait.as_preemptible,
    )


def _represent_queue(pool: ResourcePool, seen: QueueView, team: str) -> QueueOut:
    return QueueOut(
        pool=pool.pk,
        name=pool.name,
        capacity=pool.capacity,
        is_open=pool.is_open,
        free=seen.free,
        drained=seen.drained,
        used=seen.used,
        used_by_others=seen.used_by_others,
        share=seen.share,
        history=seen.history,
        evaluated_at=seen.evaluated_at,
        holders=[_represent_holding(one, team) for one in seen.holding],
        waiting=[_represent_in_line(one, team) for one in seen.waiting],
        num_waiting=seen.num_waiting,
        has_more=seen.has_more,
    )


def _who(job: Job | None, team: str) -> dict[str, str | None]:
    if job is None:
        return {"team": ANOTHER_TEAM, "job": None, "name": None}
    return {"team": team, "job": job.pk, "name": job.name}


def _represent_holding(one: Holding, team: str) -> HolderOut:
    view = one.view
    return HolderOut(
        **_who(one.job, team),
        state=JobState(one.state),
        devices=view.held,
        elastic_devices=view.held - view.devices,
        preemptible=view.preemptible,
        since=view.since,
    )


def _represent_in_line(one: InLine, team: str) -> InLineOut:
    return InLineOut(
        **_who(one.job, team),
        position=one.position,
        devices=one.devices,
        reason=WaitingReason(one.reason) if one.job is not None else None,
        queued_at=one.queued_at,
    )
