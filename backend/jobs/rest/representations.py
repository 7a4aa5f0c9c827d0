"""A job, its events and its attempts in the API. Fields may be added, never changed."""

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
    """Progress of a job: steps trained, or for an evaluation, held-out prompts completed."""

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
    reason: str = Field(description="While queued: why it waits, from a closed list. Otherwise: cause of the state.")
    message: str
    failure_class: str
    attempt: int = Field(description="Number of the current or last attempt; 0 before the first.")
    devices: int
    step: int
    steps: int = Field(description="Training steps; 0 for an evaluation of the weights of `step`.")
    progress: ProgressOut
    spec: dict[str, Any] = Field(description="With all defaults filled in. Schema: GET /schemas/job-spec.")
    priority: int
    max_runtime_s: int
    parent: str | None = Field(description="The job that this one retries.")
    start_from: str | None = Field(description="The checkpoint that the job was submitted to start from.")
    stalled_since: datetime | None = Field(
        description="The driver has been stuck or silent since then. Another attempt will replace it soon."
    )
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    created_by: str = Field(description="An email address.")
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
    """A page of events. Pass `next_after` as `after` for the next page; events never change, and `seq` has no gaps."""

    data: list[EventOut]
    has_more: bool
    next_after: int


class FaultOut(BaseModel):
    seq: int = Field(description="`seq` of its event.")
    at: datetime
    attempt: int
    component: str
    message: str
    action: str = Field(description="What the engine did about it.")


class AttemptOut(BaseModel):
    n: int
    fence: int
    submission_id: str
    resume_from: str = Field(description="Path of its checkpoint in the store; empty: from the beginning.")
    resume_step: int = Field(description="The attempt resumed after this step.")
    created_at: datetime
    submitted_at: datetime | None
    last_seen_at: datetime | None
    moved_at: datetime | None = Field(description="When its driver's loop last turned.")
    ended_at: datetime | None
    outcome: str
    message: str
    failure_class: str
    evidence: dict[str, Any] = Field(description="Evidence of its failure; empty if it did not fail.")


class FitOut(BaseModel):
    """Whether the job fits the memory of the pool's devices."""

    fits: bool = Field(description="Includes margins. False: it may not fit; a job that cannot fit is refused.")
    message: str
    arithmetic: list[str] = Field(description="One line per term, for display.")


class PresetOut(BaseModel):
    """A preset value of a setting, by the model's size and family."""

    path: str = Field(description="Path in the spec, such as optimizer.learning_rate.")
    value: float | int | str | None = Field(description="Null: the same as leaving the setting empty.")
    reason: str


class HintOut(BaseModel):
    """A setting that works against another one. Only a hint: the job is not refused."""

    path: str = Field(description="Path in the spec, such as rollout.replicas.")
    message: str


class EstimateOut(BaseModel):
    """Cost at the pool's current price, as exact decimals."""

    currency: str
    an_hour: str = Field(description="Per hour, with all devices that the job may get.")
    an_hour_at_least: str = Field(description="Per hour, with the devices that it starts with.")
    at_most: str = Field(description="All devices for the full `max_runtime_s`. A budget must have this much left.")


class PreviewOut(BaseModel):
    spec: dict[str, Any]
    presets: list[PresetOut] = Field(
        description="The model's presets in this spec, set explicitly or by default. Empty for a small or unknown "
        "model."
    )
    hints: list[HintOut] = Field(description="Valid settings that work against each other, and how to fix them.")
    pool: str
    devices: int
    trajectories_per_step: int
    starts_at_once: bool
    reason: str = Field(description="Why the job would wait, from the closed list.")
    message: str
    fit: FitOut | None = Field(description="Null if the pool's devices or the model's shape are unknown.")
    cost: EstimateOut | None = Field(description="Null if the pool is free.")


class TemplateOut(BaseModel):
    name: str
    title: str
    about: str = Field(description="One sentence about the template.")
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
