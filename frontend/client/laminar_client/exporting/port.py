"""What a tracker's run is to the one that reads the job.

Invariant: points come in the order of their steps, each once, and those of a step in one call of `write`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ..answers.jobs import Job


class Point(NamedTuple):
    """`at`: seconds since 1970. `value` may be an infinity or no number at all."""

    step: int
    at: float
    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    write: Callable[[Sequence[Point]], None]
    place: Path
    """Where it is once its context ends without an error; until then nothing is there that could be taken for it."""
    shown_by: str
    """The command that shows it, or takes it further."""


OpenTracker: TypeAlias = Callable[[Job, Path], AbstractContextManager[OpenRun]]


def began(job: Job) -> float:
    return (job.started_at or job.created_at).timestamp()


def ended(job: Job) -> float:
    return (job.finished_at or job.started_at or job.created_at).timestamp()
