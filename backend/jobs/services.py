"""What people and programs may ask for: submit a job, cancel a job."""

from datetime import datetime

from django.db import transaction

from backend.accounts.models import Project, Team, User
from backend.errors import FieldError, Invalid, InvalidState
from backend.ids import new_id
from backend.jobs.lifecycle import LEGAL_MOVES, advance, locked_job, record_event
from backend.jobs.models import Job, JobRequest, JobState
from backend.jobs.outbox import enqueue
from backend.pools.decide import WaitingReason
from backend.pools.models import ResourcePool
from backend.pools.selectors import nominal_of
from engine.spec.job import JobSpec


class SpecRefused(Invalid):
    """The spec is well formed, and still no job: it could never start, or asks for what is not the team's.

    The pointers lead into the spec.
    """


def submit_job(
    *, team: Team, project: Project, actor_user: User, spec: JobSpec, pool: ResourcePool, actor: str, now: datetime
) -> Job:
    """The job waits in the pool's line; the scheduler hears of it when this transaction commits.

    Raises `SpecRefused`.
    """
    assert project.team_id == team.pk, "the caller looks projects up within the team"
    refuse_spec(spec, team, pool)
    with transaction.atomic():
        job = Job.objects.create(
            team=team,
            project=project,
            pool=pool,
            created_by=actor_user,
            name=spec.name,
            spec=spec.model_dump(mode="json"),
            devices=spec.num_devices,
            min_devices=spec.min_devices,
            priority=spec.placement.priority,
            preemptible=spec.placement.preemptible,
            max_runtime_s=spec.max_runtime_s,
            steps=spec.training.steps,
            state=JobState.QUEUED,
            reason=WaitingReason.NOT_EVALUATED_YET,
            message="The scheduler has not looked at this job yet.",
            created_at=now,
            queued_at=now,
        )
        record_event(
            job, "submitted", actor=actor, now=now, to_state=JobState.QUEUED, data={"devices": spec.num_devices}
        )
        enqueue("schedule", pool.pk, now)
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
    return job, True


def refuse_spec(spec: JobSpec, team: Team, pool: ResourcePool) -> None:
    """Raises `SpecRefused`."""
    if not spec.model.is_name:  # a path could lead to another team's
        message = "must be a name of letters, digits, dots, dashes and underscores, such as demo"
        raise _refused(f"The model {message}.", pointer="/model/source", code="model_unknown", message=message)
    nominal = nominal_of(team, pool)
    limit, whose = min((pool.capacity, f"pool {pool.name} has"), (nominal, f"your team may use in pool {pool.name}"))
    if spec.num_devices > limit:
        pointer = "/rollout/replicas" if spec.resources.trainer_devices <= limit else "/resources/trainer_devices"
        message = f"this job needs {spec.num_devices} devices; {limit} is all that {whose}"
        raise _refused(f"This job could never start: {message}.", pointer=pointer, code="exceeds_max", message=message)


def _refused(detail: str, *, pointer: str, code: str, message: str) -> SpecRefused:
    return SpecRefused(detail, code=code, errors=[FieldError(pointer=pointer, code=code, message=message)])


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
