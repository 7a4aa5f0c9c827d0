"""Pausing and resuming.

    running ──pause──▶ pausing ──the engine's last fact, or a deadline──▶ paused ──resume──▶ queued
                          └── preempted: back to its old place in the queue ──▶ queued

The end of the attempt decides how a pause ends: `attempts.ending.land`.

Invariant: pausing twice is the same as once; cancelling wins over pausing.
"""

from datetime import datetime

from django.db import transaction

from backend.audit.services import record_action
from backend.errors import InvalidState
from backend.jobs.attempts.ending import PREEMPTED, state_after_pause
from backend.jobs.control_requests import ask_driver
from backend.jobs.lifecycle import LEGAL_MOVES, change_state, locked_job, record_event
from backend.jobs.models import Job, JobState


def pause_job(job_id: str, *, actor: str, now: datetime) -> tuple[Job, bool]:
    """Returns the job and whether this call changed anything. Raises `InvalidState`."""
    with transaction.atomic():
        job = locked_job(job_id)
        if job.state == JobState.PAUSED or (
            job.state == JobState.PAUSING and state_after_pause(job) == JobState.PAUSED
        ):
            return job, False
        if job.state == JobState.PAUSING:
            _stay_paused(job, actor=actor, now=now)
        elif JobState.PAUSING in LEGAL_MOVES[job.state]:
            begin_pause(job, reason="user", message="Waiting for the engine's checkpoint.", actor=actor, now=now)
        else:
            raise refused(job, "paused")
        record_action(team_id=job.team_id, actor=actor, action="job.pause", target=job.pk, now=now)
    return job, True


def requeue(job_id: str, *, actor: str, now: datetime) -> Job:
    """Requested by an operator: the job pauses at a checkpoint and resumes from its old place in the queue, on hosts
    that are not being drained. Raises `InvalidState`."""
    with transaction.atomic():
        job = locked_job(job_id)
        if JobState.PAUSING not in LEGAL_MOVES[job.state]:
            raise refused(job, "sent back to the queue")
        message = "An operator needs its hosts. The job resumes from its checkpoint when devices are free."
        begin_pause(job, reason=PREEMPTED, message=message, actor=actor, now=now)
        record_action(team_id=job.team_id, actor=actor, action="job.sent_back", target=job.pk, now=now)
    return job


def begin_pause(job: Job, *, reason: str, message: str, actor: str, now: datetime) -> None:
    """Pauses a locked job that holds devices. The driver gets the request with its next heartbeat."""
    ask_driver(job, "pause", now=now)
    target = JobState.QUEUED if reason == PREEMPTED else JobState.PAUSED
    change_state(
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
    """Puts the job at the end of the queue. Raises `InvalidState`."""
    with transaction.atomic():
        job = locked_job(job_id)
        if job.state in {JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.RECOVERING}:
            return job, False
        if job.state != JobState.PAUSED:
            raise refused(job, "resumed")
        message = "Resumed. Waiting in the queue."
        change_state(job, JobState.QUEUED, actor=actor, now=now, reason="user", message=message, queued_at=now)
        record_action(team_id=job.team_id, actor=actor, action="job.resume", target=job.pk, now=now)
    return job, True


def refused(job: Job, verb: str) -> InvalidState:
    allowed = [str(move) for move in LEGAL_MOVES[job.state]]
    return InvalidState(f"A job that is {job.state} cannot be {verb}.", state=job.state, allowed=allowed)


def _stay_paused(job: Job, *, actor: str, now: datetime) -> None:
    """Turns a preemption into a pause: the user does not want the job back in the queue."""
    changes = {"target_state": JobState.PAUSED, "reason": "user", "version": job.version + 1}
    Job.objects.filter(pk=job.pk).update(**changes)
    for name, value in changes.items():
        setattr(job, name, value)
    record_event(job, "pause_requested", actor=actor, now=now, reason="user")
