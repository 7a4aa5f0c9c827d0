"""Where a job's next attempt goes on: its own newest checkpoint, else the one that it was submitted to start from.

Checkpoints belong to an app above this one, so they are reached through the job's own relation; which of them may be
used is said there, by `usable`.
"""

from dataclasses import dataclass

from backend.accounts.models import Team
from backend.jobs.models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    checkpoint: str
    """Its id."""
    uri: str
    step: int


def resume_point(job: Job) -> ResumePoint | None:
    newest = job.checkpoints.usable().values_list("pk", "uri", "step").first()
    if newest is not None:
        return ResumePoint(checkpoint=newest[0], uri=newest[1], step=newest[2])
    if not job.start_from:
        return None
    # One that was found broken since: the engine shall fail on it and say so, rather than begin anew in silence.
    origin = job_of_checkpoint(job.team, job.start_from)
    found = origin and origin.checkpoints.filter(pk=job.start_from).values_list("uri", "step").first()
    return ResumePoint(checkpoint=job.start_from, uri=found[0], step=found[1]) if found else None


def checkpoint_of_team(team: Team, checkpoint: str) -> ResumePoint | None:
    """Another team's is answered like one that does not exist."""
    origin = job_of_checkpoint(team, checkpoint)
    found = origin and origin.checkpoints.usable().filter(pk=checkpoint).values_list("uri", "step").first()
    return ResumePoint(checkpoint=checkpoint, uri=found[0], step=found[1]) if found else None


def job_of_checkpoint(team: Team, checkpoint: str) -> Job | None:
    if "\x00" in checkpoint:  # Postgres would choke on it
        return None
    return Job.objects.filter(team=team, checkpoints__pk=checkpoint).first()
