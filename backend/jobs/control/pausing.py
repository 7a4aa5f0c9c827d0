"""Pausing and resuming.

    running ──pause──▶ pausing ──the engine's last word, or a deadline──▶ paused ──resume──▶ queued
                          └── preempted: back to its old place in the line ──▶ queued

Invariants:
- pausing twice is the same as once; cancelling wins over pausing;
- a job that let go of its devices has a resume point, or its event says how many steps will be trained again.
"""

from datetime import datetime

from django.db import transaction

from backend.audit.services import record_action
from backend.errors import InvalidState
from backend.ids import new_id
from backend.jobs.attempts.resume_points import resume_point
from backend.jobs.lifecycle import LEGAL_MOVES, advance, locked_job, record_event
from backend.jobs.models import Job, JobRequest, JobState

PREEMPTED = "preempted"


def pause_job(job_id: str, *, actor: str, now: datetime) -> tuple[Job, bool]:
    """The job, and whether this call changed anything. Raises `InvalidState`."""
    with transaction.atomic():
        job = locked_job(job_id)
        if job.state == JobState.PAUSED or (job.state == JobState.PAUSING and _lands_in(job) == JobState.PAUSED):
            return job, False
        if job.state == JobState.PAUSING:
            _stay_paused(job, actor=actor, now=now)
        elif JobState.PAUSING in LEGAL_MOVES[job.state]:
            begin_pause(job, reason="user", message="Waiting for the engine's checkpoint.", actor=actor, now=now)
        else:
            raise refused(job, "paused")
        record_action(team_id=job.team_id, actor=actor, action="job.pause", target=job.pk, now=now)
    return job, True


def begin_pause(job: Job, *, reason: str, message: str, actor: str, now: datetime) -> None:
    """Of a locked job that holds devices. The driver hears of it with its next heartbeat."""
    if not job.requests.filter(kind="pause", acknowledged_at__isnull=True).exists():
        JobRequest.objects.create(id=new_id("req"), job=job, kind="pause", created_at=now)
    target = JobState.QUEUED if reason == PREEMPTED else JobState.PAUSED
    advance(
        job,
        JobState.PAUSING,
        actor=actor,
        now=now,
        reason=reason,
        message=message,
        phase="draining",
        target_state=target,
    )


def resume_job(job_id: str, *, actor: str, now: datetime) -> tuple[Job, bool]:
    """Into the line again, at its end. Raises `InvalidState`."""
    with transaction.atomic():
        job = locked_job(job_id)
        if job.state in {JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.RECOVERING}:
            return job, False
        if job.state != JobState.PAUSED:
            raise refused(job, "resumed")
        message = "Resumed; waiting for its turn."
        advance(job, JobState.QUEUED, actor=actor, now=now, reason="user", message=message, queued_at=now)
        record_action(team_id=job.team_id, actor=actor, action="job.resume", target=job.pk, now=now)
    return job, True


def land(job: Job, *, actor: str, now: datetime, because: str = "") -> None:
    """The last move of a pause: devices are free, and what will be trained again is said."""
    point = resume_point(job)
    step = point.step if point else 0
    lost = max(0, job.step - step)
    where = f"Goes on after step {step}." if point else "Begins at the beginning."
    if job.only_evaluates:
        where = "The evaluation begins anew."
    again = f" {lost} {'step' if lost == 1 else 'steps'} will be trained again." if lost else ""
    target = _lands_in(job)
    advance(
        job,
        target,
        actor=actor,
        now=now,
        reason=job.reason,
        message=f"{because} {where}{again}".strip(),
        data={"checkpoint": point.checkpoint if point else None, "resume_step": step, "lost_steps": lost},
    )


def refused(job: Job, verb: str) -> InvalidState:
    allowed = [str(move) for move in LEGAL_MOVES[job.state]]
    return InvalidState(f"a job that is {job.state} cannot be {verb}", state=job.state, allowed=allowed)


def _lands_in(job: Job) -> JobState:
    """A preemption leads back into the line, wherever it was begun."""
    if job.target_state:
        return JobState(job.target_state)
    return JobState.QUEUED if job.reason == PREEMPTED else JobState.PAUSED


def _stay_paused(job: Job, *, actor: str, now: datetime) -> None:
    """It was being preempted; now its owner does not want it back in the line."""
    changes = {"target_state": JobState.PAUSED, "reason": "user", "version": job.version + 1}
    Job.objects.filter(pk=job.pk).update(**changes)
    for name, value in changes.items():
        setattr(job, name, value)
    record_event(job, "pause_requested", actor=actor, now=now, reason="user")
