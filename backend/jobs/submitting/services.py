"""What people and programs may ask for: submit a job, cancel one, change its name, kill it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from backend.accounts.models import Project, Team, User
from backend.audit.services import record_action
from backend.errors import FieldError, InvalidState, NotFound
from backend.ids import new_id
from backend.jobs.attempts.resume_points import ResumePoint, checkpoint_of_team, job_of_checkpoint
from backend.jobs.lifecycle import LEGAL_MOVES, advance, begin, locked_job, record_event
from backend.jobs.models import HOLDING_STATES, WAITING_STATES, Job, JobRequest, JobState
from backend.jobs.outbox import enqueue
from backend.jobs.submitting.refusals import SpecRefused, refuse_spec, refuse_start
from backend.jobs.submitting.validation import needs_validation
from backend.pools.decide import WaitingReason
from backend.pools.models import ResourcePool, TeamQuota
from engine.spec.job import JobSpec

__all__ = ["SpecRefused", "cancel_job", "change_job", "kill_job", "refuse_spec", "submit_job"]

ALWAYS_CHANGEABLE = frozenset({"name", "tags"})
CHANGEABLE_WHILE_WAITING = frozenset({"priority", "max_runtime_s"})


def submit_job(
    *,
    team: Team,
    project: Project,
    actor_user: User,
    spec: JobSpec,
    pool: ResourcePool,
    actor: str,
    now: datetime,
    start_from: str = "",
    parent: Job | None = None,
    data: Mapping[str, Any] | None = None,
    quotas: Sequence[TeamQuota] | None = None,
) -> Job:
    """The job waits in the pool's line; the scheduler hears of it when this transaction commits.

    `start_from` is the id of a checkpoint of the team's; `quotas` are the pool's, if they were read already. Raises
    `SpecRefused`, `NotFound`.
    """
    assert project.team_id == team.pk, "the caller looks projects up within the team"
    refuse_spec(spec, team, pool, quotas=quotas)
    start = _start(team, spec, start_from)
    state = JobState.VALIDATING if needs_validation(spec, start_from=start_from) else JobState.QUEUED
    is_queued = state == JobState.QUEUED
    job = Job(
        team=team,
        project=project,
        pool=pool,
        created_by=actor_user,
        name=spec.name,
        tags=spec.tags,
        spec=spec.model_dump(mode="json"),
        devices=spec.num_devices,
        min_devices=spec.min_devices,
        priority=spec.placement.priority,
        preemptible=spec.placement.preemptible,
        max_runtime_s=spec.max_runtime_s,
        steps=spec.training.steps,
        step=start.step if start else 0,
        start_from=start_from,
        parent=parent,
        state=state,
        reason=WaitingReason.NOT_EVALUATED_YET if is_queued else "",
        message="The scheduler has not looked at this job yet." if is_queued else "Its parts are being looked at.",
        created_at=now,
        queued_at=now if is_queued else None,
    )
    about = {"devices": spec.num_devices, "start_from": start_from, "parent": parent.pk if parent else ""}
    told = {key: value for key, value in about.items() if value}
    with transaction.atomic(savepoint=False):  # a caller's own transaction does not outlive a job that cannot be made
        begin(job, actor=actor, now=now, data={**told, **(data or {})})
    return job


def cancel_job(job_id: str, *, actor: str, now: datetime) -> tuple[Job, bool]:
    """The job, and whether this call changed anything: cancelling twice is the same as once.

    A job that holds nothing is cancelled at once. One that runs goes to `stopping`, its driver is asked to end it,
    and ingest (or reconcile's deadline) makes the last move. A job that already stops keeps its destination.
    """
    with transaction.atomic():
        job = locked_job(job_id)
        if job.state in {JobState.STOPPING, JobState.CANCELLED}:
            return job, False
        moves = LEGAL_MOVES[job.state]
        if JobState.CANCELLED in moves:
            advance(job, JobState.CANCELLED, actor=actor, now=now, reason="user", message="Cancelled before it ran.")
        elif JobState.STOPPING in moves:
            _ask_to_stop(job, actor=actor, now=now)
        else:
            raise InvalidState(
                f"a job that has {job.state} cannot be cancelled",
                state=job.state,
                allowed=[str(move) for move in moves],
            )
        record_action(team_id=job.team_id, actor=actor, action="job.cancel", target=job.pk, now=now)
    return job, True


def kill_job(job_id: str, *, actor: str, now: datetime) -> tuple[Job, bool]:
    """Ends a job without waiting for its engine: for one that will not let go. What still runs of it is fenced off at
    once and stopped by Ray; until then it may use devices that another job is given."""
    with transaction.atomic():
        job = locked_job(job_id)
        if job.is_terminal:
            return job, False
        was, message = job.state, "Killed without waiting for its engine."
        if job.state in HOLDING_STATES:
            if job.state != JobState.STOPPING:
                target = JobState.CANCELLED
                advance(job, JobState.STOPPING, actor=actor, now=now, reason="killed", target_state=target)
            enqueue("stop", job.pk, now)
        target = JobState(job.target_state or JobState.CANCELLED)
        advance(job, target, actor=actor, now=now, reason="killed", message=message)
        record_action(team_id=job.team_id, actor=actor, action="job.kill", target=job.pk, now=now, data={"state": was})
    return job, True


def change_job(job_id: str, changes: Mapping[str, Any], *, actor: str, now: datetime) -> Job:
    """Name and tags of a job that is not over, priority and runtime of one that waits. The caller holds the lock and
    has compared the version. Raises `InvalidState`."""
    job = locked_job(job_id)
    if job.is_terminal:
        raise InvalidState(f"a job that has {job.state} is not changed any more", state=job.state, allowed=[])
    too_late = sorted(set(changes) & CHANGEABLE_WHILE_WAITING) if job.state not in WAITING_STATES else []
    if too_late:
        errors = [FieldError(pointer=f"/{name}", code="too_late", message="only while it waits") for name in too_late]
        raise InvalidState(
            f"{' and '.join(too_late)} can be changed while a job waits, not when it is {job.state}",
            errors=errors,
            state=job.state,
            allowed=[],
        )
    before = {name: getattr(job, name) for name in changes if getattr(job, name) != changes[name]}
    if not before:
        return job
    after = {name: changes[name] for name in before}
    Job.objects.filter(pk=job.pk).update(**after, version=job.version + 1)
    job.refresh_from_db()
    record_event(job, "changed", actor=actor, now=now, data={"before": before, "after": after})
    enqueue("schedule", job.pool_id, now)
    data = {"before": before, "after": after}
    record_action(team_id=job.team_id, actor=actor, action="job.change", target=job.pk, now=now, data=data)
    return job


def cancel_many(team: Team, job_ids: Sequence[str], *, actor: str, now: datetime) -> list[tuple[str, str]]:
    """Each id with what became of it: cancelled, already, finished, not_found. Each job in a transaction of its own, so
    that one that is busy does not hold up the others."""
    known = set(Job.objects.filter(team=team, pk__in=job_ids).values_list("pk", flat=True))
    return [(job_id, _cancel_one(job_id, actor, now) if job_id in known else "not_found") for job_id in job_ids]


def _cancel_one(job_id: str, actor: str, now: datetime) -> str:
    try:
        return "cancelled" if cancel_job(job_id, actor=actor, now=now)[1] else "already"
    except InvalidState:
        return "finished"


def _start(team: Team, spec: JobSpec, start_from: str) -> ResumePoint | None:
    if not start_from:
        return None
    point, origin = checkpoint_of_team(team, start_from), job_of_checkpoint(team, start_from)
    if point is None or origin is None:
        error = FieldError(pointer="/start_from", code="not_found", message="your team has no checkpoint with this id")
        raise NotFound("There is no checkpoint with this id.", errors=[error])
    refuse_start(spec, point, origin)
    return point


def _ask_to_stop(job: Job, *, actor: str, now: datetime) -> None:
    JobRequest.objects.create(id=new_id("req"), job=job, kind="cancel", created_at=now)
    advance(
        job,
        JobState.STOPPING,
        actor=actor,
        now=now,
        reason="user",
        message="Waiting for the engine to let go.",
        target_state=JobState.CANCELLED,
    )
