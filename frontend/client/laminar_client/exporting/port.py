"""The interface between the export and a tracker's run.

Invariant: points come in step order, each once, and all points of a step in one call of `write`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ..answers.jobs import Job


class Point(NamedTuple):
    """`at`: seconds since 1970. `value` may be infinite or NaN."""

    step: int
    at: float
    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    write: Callable[[Sequence[Point]], None]
    place: Path
    """Where the run is after its context ends without an error; before that, nothing exists at this place."""
    shown_by: str
    """The command to view or sync the run."""


OpenTracker: TypeAlias = Callable[[Job, Path], AbstractContextManager[OpenRun]]


def began(job: Job) -> float:
    return (job.started_at or job.created_at).timestamp()


def ended(job: Job) -> float:
    return (job.finished_at or job.started_at or job.created_at).timestamp()
