"""Pausing and resuming.

    running ──pause──▶ pausing ──the engine's last fact, or a deadline──▶ paused ──resume──▶ queued
                          └── preempted, or resumed meanwhile: back to its old place in the queue ──▶ queued

The end of the attempt decides how a pause ends: `attempts.ending.land`.

Invariants:
- pausing twice is the same as once; cancelling wins over pausing;
- a pause that has begun completes (backend/decisions.md): resuming meanwhile changes only where it ends.
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
            _end_pause_in(job, JobState.PAUSED, type="pause_requested", actor=actor, now=now)
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
    """Puts a paused job at the end of the queue; one that is pausing returns to its old place when its pause has
    completed. Raises `InvalidState`."""
    with transaction.atomic():
        job = locked_job(job_id)
        is_coming_back = job.state == JobState.PAUSING and state_after_pause(job) == JobState.QUEUED
        if is_coming_back or job.state in {JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.RECOVERING}:
            return job, False
        if job.state == JobState.PAUSING:
            _end_pause_in(job, JobState.QUEUED, type="resume_requested", actor=actor, now=now)
        elif job.state == JobState.PAUSED:
            message = "Resumed. Waiting in the queue."
            change_state(job, JobState.QUEUED, actor=actor, now=now, reason="user", message=message, queued_at=now)
        else:
            raise refused(job, "resumed")
        record_action(team_id=job.team_id, actor=actor, action="job.resume", target=job.pk, now=now)
    return job, True


def refused(job: Job, verb: str) -> InvalidState:
    allowed = [str(move) for move in LEGAL_MOVES[job.state]]
    return InvalidState(f"A job that is {job.state} cannot be {verb}.", state=job.state, allowed=allowed)


def _end_pause_in(job: Job, target: JobState, *, type: str, actor: str, now: datetime) -> None:
    """Changes where the pause of a locked job ends: a user wants a preempted job to stay out of the queue, or one that
    pauses to run on."""
    changes = {"target_state": target, "reason": "user", "version": job.version + 1}
    Job.objects.filter(pk=job.pk).update(**changes)
    for name, value in changes.items():
        setattr(job, name, value)
    record_event(job, type, actor=actor, now=now, reason="user")
