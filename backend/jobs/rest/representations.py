"""A job, its events and its attempts, as programs see them. Adding a field is fine, changing one is not."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from backend.jobs.models import Job, JobAttempt, JobEvent, JobState
from engine.spec.for_tenants import place_in_store


class JobLinks(BaseModel):
    """Paths on this server."""

    self: str
    events: str
    metrics: str
    page: str


class ProgressOut(BaseModel):
    """Progress of a job: steps trained; of one that only evaluates, held-out prompts that have their end."""

    done: int
    total: int
    unit: Literal["steps", "prompts"]

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(done=job.num_done, total=job.num_to_do, unit="prompts" if job.only_evaluates else "steps")


class JobOut(BaseModel):
    id: str
    name: str
    tags: list[str]
    project: str
    team: str
    pool: str = Field(description="The pool's name.")
    state: JobState
    phase: str
    reason: str = Field(description="While queued: why it waits, from a closed list. Else: what led to this state.")
    message: str
    failure_class: str
    attempt: int = Field(description="Of the present or last attempt; 0 before the first.")
    devices: int
    step: int
    steps: int = Field(description="Of training; 0: it only evaluates, the weights of `step`.")
    progress: ProgressOut
    spec: dict[str, Any] = Field(description="With all defaults filled in; GET /schemas/job-spec describes it.")
    priority: int
    max_runtime_s: int
    parent: str | None = Field(description="The job that this one is a retry of.")
    start_from: str | None = Field(description="The checkpoint that it was submitted to go on from.")
    stalled_since: datetime | None = Field(
        description="Its driver has stood still since then, or not been heard of. Soon another attempt goes on."
    )
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    created_by: str = Field(description="An e-mail address.")
    links: JobLinks


class EventOut(BaseModel):
    seq: int
    at: datetime
    type: str
    actor: str
    from_state: str
    to_state: str
    reason: str
    message: str
    data: dict[str, Any]


class EventsOut(BaseModel):
    """A page of events. Ask again with `after=next_after`; events are never changed, and `seq` has no gaps."""

    data: list[EventOut]
    has_more: bool
    next_after: int


class FaultOut(BaseModel):
    seq: int = Field(description="Of its event.")
    at: datetime
    attempt: int
    component: str
    message: str
    action: str = Field(description="What was done about it.")


class AttemptOut(BaseModel):
    n: int
    fence: int
    submission_id: str
    resume_from: str = Field(description="The place of its checkpoint in the store; empty: from the beginning.")
    resume_step: int = Field(description="It goes on after this step.")
    created_at: datetime
    submitted_at: datetime | None
    last_seen_at: datetime | None
    moved_at: datetime | None = Field(description="When its driver was last known to be going about its work.")
    ended_at: datetime | None
    outcome: str
    message: str
    failure_class: str
    evidence: dict[str, Any] = Field(description="What was seen when it failed; empty if it did not.")


class FitOut(BaseModel):
    """Whether the job fits the memory of the pool's devices."""

    fits: bool = Field(description="Margins included. False: it may not; what cannot fit at all is refused.")
    message: str
    arithmetic: list[str] = Field(description="A line a term, for a person.")


class PresetOut(BaseModel):
    """A setting that the model's size and family ask for."""

    path: str = Field(description="In the spec, such as optimizer.learning_rate.")
    value: float | int | str | None = Field(description="Null: as the empty setting has it.")
    reason: str


class HintOut(BaseModel):
    """A setting that works against another one. Nothing is refused by it."""

    path: str = Field(description="In the spec, such as rollout.replicas.")
    message: str


class EstimateOut(BaseModel):
    """By the pool's price of now, in exact decimals."""

    currency: str
    an_hour: str = Field(description="With all devices that the job may get.")
    an_hour_at_least: str = Field(description="With those that it starts with.")
    at_most: str = Field(description="All of them for the whole of `max_runtime_s`: a budget must have that much left.")


class PreviewOut(BaseModel):
    spec: dict[str, Any]
    presets: list[PresetOut] = Field(
        description="Those of the model that this spec has, whether it says so or left them out. None of a model that "
        "is small, or not known here."
    )
    hints: list[HintOut] = Field(description="Valid settings that work against each other, with what helps.")
    pool: str
    devices: int
    trajectories_per_step: int
    starts_at_once: bool
    reason: str = Field(description="Why the job would wait, from the closed list.")
    message: str
    fit: FitOut | None = Field(description="Null: the pool's devices or the model's shape are not known here.")
    cost: EstimateOut | None = Field(description="Null: the pool is free.")


class TemplateOut(BaseModel):
    name: str
    title: str
    about: str = Field(description="A sentence on what it shows.")
    spec: dict[str, Any]


def job_path(job_id: str) -> str:
    return f"/api/v1/jobs/{job_id}"


def represent_job(job: Job) -> JobOut:
    path = job_path(job.pk)
    return JobOut(
        id=job.pk,
        name=job.name,
        tags=job.tags,
        project=job.project_id,
        team=job.team_id,
        pool=job.pool.name,
        state=JobState(job.state),
        phase=job.phase,
        reason=job.reason,
        message=job.message,
        failure_class=job.failure_class,
        attempt=job.num_attempts,
        devices=job.devices,
        step=job.step,
        steps=job.steps,
        progress=ProgressOut.of(job),
        spec=job.spec,
        priority=job.priority,
        max_runtime_s=job.max_runtime_s,
        parent=job.parent_id,
        start_from=job.start_from or None,
        stalled_since=job.stalled_since,
        created_at=job.created_at,
        queued_at=job.queued_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        created_by=job.created_by.email,
        links=JobLinks(self=path, events=f"{path}/events", metrics=f"{path}/metrics", page=f"/jobs/{job.pk}/"),
    )


def represent_event(event: JobEvent) -> EventOut:
    return EventOut(
        seq=event.seq,
        at=event.at,
        type=event.type,
        actor=event.actor,
        from_state=event.from_state,
        to_state=event.to_state,
        reason=event.reason,
        message=event.message,
        data=event.data,
    )


def represent_attempt(attempt: JobAttempt) -> AttemptOut:
    return AttemptOut(
        n=attempt.n,
        fence=attempt.fence,
        submission_id=attempt.submission_id,
        resume_from=place_in_store(attempt.resume_from),
        resume_step=attempt.resume_step,
        created_at=attempt.created_at,
        submitted_at=attempt.submitted_at,
        last_seen_at=attempt.last_seen_at,
        moved_at=attempt.moved_at,
        ended_at=attempt.ended_at,
        outcome=attempt.outcome,
        message=attempt.message,
        failure_class=attempt.failure_class,
        evidence=attempt.evidence,
    )


def represent_fault(event: JobEvent) -> FaultOut:
    return FaultOut(
        seq=event.seq,
        at=event.at,
        attempt=int(event.actor.partition(":")[2]),
        component=event.data["component"],
        message=event.message,
        action=event.data["action"],
    )
