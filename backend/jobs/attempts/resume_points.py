"""The point where a job's next attempt goes on: its own newest checkpoint, else the one it was submitted to start from.

Checkpoints belong to an app above this one. What jobs need to know of them stands in `Checkpoints`, a port that
`backend.checkpoints` fills; which of them may be used is its to say.
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
    """Its id."""
    uri: str
    step: int
    origin: Job
    """The job that wrote it."""
    is_usable: bool


class Checkpoints(Protocol):
    def newest_usable(self, job: Job) -> ResumePoint | None:
        """Of the job's own."""

    def find(self, team: Team, checkpoint: str) -> ResumePoint | None:
        """Whatever became of it. Another team's is answered like one that does not exist."""

    def attempts_with_one(self, job: Job) -> Set[int]:
        """By number: those that got as far as a checkpoint of their own."""


checkpoints: Port[Checkpoints] = Port("where jobs go on from")


def resume_point(job: Job) -> ResumePoint | None:
    newest = checkpoints().newest_usable(job)
    if newest is not None or not job.start_from:
        return newest
    # One that was found broken since: the engine shall fail on it and say so, rather than begin again in silence.
    return checkpoints().find(job.team, job.start_from)


def checkpoint_of_team(team: Team, checkpoint: str) -> ResumePoint | None:
    """One that a job may go on from."""
    found = checkpoints().find(team, checkpoint)
    return found if found is not None and found.is_usable else None


def job_of_checkpoint(team: Team, checkpoint: str) -> Job | None:
    found = checkpoints().find(team, checkpoint)
    return found.origin if found is not None else None
