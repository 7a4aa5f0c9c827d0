"""All curves of a job that is over, read window by window and handed to a tracker's run.

    steps  0 ────┤ window ├────┤ window ├───── last
                   └ of every series, by step, of the latest attempt that did it

Invariants:
- a window is answered in one page of about `POINTS_A_PAGE` points, so the memory does not grow with the job;
- windows begin and end where the server's smallest rollups do: of a job so old that it keeps only those, each is read
  once, as a mean that stands at its last step;
- what has no time of its own, as those means, has that of the point before it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..answers.jobs import Job
from ..answers.telemetry import Metrics
from ..calls.jobs import show
from ..calls.telemetry import metrics
from ..errors import Conflict, LaminarError
from ..wire import Procedure
from .mlflow import mlflow_run
from .port import OpenTracker, Point, began
from .tensorboard import tensorboard_run
from .wandb import wandb_run

POINTS_A_PAGE: Final = 20_000  # about a megabyte of JSON with its times
MOST_STEPS: Final = 2_000  # of a series, that the server gives in one answer
ROLLUP: Final = 16
TRACKERS: Final[Mapping[str, OpenTracker]] = {
    "mlflow": mlflow_run,
    "tensorboard": tensorboard_run,
    "wandb": wandb_run,
}
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """`num_means` of the points stand for several steps each, of which the server keeps no more."""

    place: Path
    num_series: int
    num_points: int
    num_means: int
    shown_by: str


def export(job_id: str, tracker: str, to: Path | str = ".", *, told: Told | None = None) -> Procedure[Exported]:
    """All curves of a job that is over, with its spec as parameters, as a run of `tracker`: mlflow (the store
    mlflow.db in the folder `to`), tensorboard or wandb (a folder in `to`, named after the job). Needs that tracker's
    extra of this package. A job that is there already is refused. `told(steps so far, steps in all)` is called as it
    goes."""
    if tracker not in TRACKERS:
        raise ValueError(f"tracker: one of {', '.join(TRACKERS)}, got {tracker!r}")
    job = yield from show(job_id)
    if not job.is_over:
        detail = f"{job.id} is {job.state}: its curves can be exported when it is over (`laminar wait {job.id}`)."
        raise Conflict(409, {"code": "invalid_state", "detail": detail})
    if job.id != Path(job.id).name:
        raise LaminarError(f"The server named the job {job.id!r:.100}, which cannot name a folder.")
    ends = yield from metrics(job.id, max_points=2)
    last = {name: int(line[-1][0]) for name, line in ends.series.items() if line}
    with TRACKERS[tracker](job, Path(to)) as run:
        num_points, num_means = yield from _copied(job, last, run.write, told or (lambda so_far, in_all: None))
    return Exported(
        place=run.place,
        num_series=len(last),
        num_points=num_points,
        num_means=num_means,
        shown_by=run.shown_by,
    )


def _copied(
    job: Job, last: Mapping[str, int], write: Callable[[Sequence[Point]], None], told: Told
) -> Procedure[tuple[int, int]]:
    num_points, num_means, at = 0, 0, began(job)
    width = steps_a_window(len(last))
    end = max(last.values(), default=-1) + 1
    for first in range(0, end, width):
        page = yield from metrics(job.id, max_points=width, from_step=first, to_step=first + width - 1, times=True)
        points = points_of(page, at)
        if points:
            write(points)
            at = points[-1].at
        num_points += len(points)
        num_means += sum(moment is None for moments in page.times.values() for moment in moments)
        told(min(first + width, end), end)
    return num_points, num_means


def steps_a_window(num_series: int) -> int:
    width = POINTS_A_PAGE // max(1, num_series) // ROLLUP * ROLLUP
    return max(ROLLUP, min(MOST_STEPS, width))


def points_of(page: Metrics, at: float) -> list[Point]:
    """By step, then by time and name; `at` is the time of the point before them."""
    found = []
    for name, line in page.series.items():
        before = at
        for (step, value), moment in zip(line, page.times[name], strict=True):
            before = before if moment is None else moment.timestamp()
            found.append(Point(int(step), before, name, float("nan") if value is None else float(value)))
    return sorted(found)
