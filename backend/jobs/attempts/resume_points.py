"""Where a job's next attempt resumes: its own newest checkpoint, otherwise the one that it was submitted to start from.

Checkpoints belong to an app above jobs: `Checkpoints` is the port that `backend.checkpoints` provides, and decides
which of them may be used.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol

from backend.accounts.models import Team
from backend.jobs.models import Job
from backend.ports import Port


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    checkpoint: str
    """Id of the checkpoint."""
    uri: str
    step: int
    origin: Job
    """The job that wrote it."""
    is_usable: bool


class Checkpoints(Protocol):
    def newest_usable(self, job: Job) -> ResumePoint | None:
        """Newest usable checkpoint of the job's own."""

    def find(self, team: Team, checkpoint: str) -> ResumePoint | None:
        """In any state. Another team's checkpoint is answered like one that does not exist."""

    def attempts_with_one(self, job: Job) -> Set[int]:
        """Numbers of the attempts that wrote a checkpoint."""


checkpoints: Port[Checkpoints] = Port("where jobs resume")


def resume_point(job: Job) -> ResumePoint | None:
    newest = checkpoints().newest_usable(job)
    if newest is not None or not job.start_from:
        return newest
    # If it was found corrupt since, the engine must fail on it visibly, not restart silently.
    return checkpoints().find(job.team, job.start_from)


def checkpoint_of_team(team: Team, checkpoint: str) -> ResumePoint | None:
    """A checkpoint that a job may resume from, or None."""
    point = checkpoints().find(team, checkpoint)
    return point if point is not None and point.is_usable else None


def job_of_checkpoint(team: Team, checkpoint: str) -> Job | None:
    point = checkpoints().find(team, checkpoint)
    return point.origin if point is not None else None
