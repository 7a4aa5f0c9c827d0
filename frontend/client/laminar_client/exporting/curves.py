"""Exports all series of an ended job to a tracker's run, window by window.

    steps  0 ────┤ window ├────┤ window ├───── last
                   └ of every series, by step, from the latest attempt that did the step

Invariants:
- a window is one page of about `POINTS_A_PAGE` points, so memory does not grow with the job;
- windows are aligned with the server's smallest rollups: for a job so old that only rollups are kept, each is read
  once, as a mean at its last step;
- a point without a time, such as these means, gets the time of the point before it.
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

POINTS_A_PAGE: Final = 20_000  # about a megabyte of JSON including times
MOST_STEPS: Final = 2_000  # per series, in one response of the server
ROLLUP: Final = 16
TRACKERS: Final[Mapping[str, OpenTracker]] = {
    "mlflow": mlflow_run,
    "tensorboard": tensorboard_run,
    "wandb": wandb_run,
}
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """`num_means`: points that are means over several steps, because the server keeps no more."""

    place: Path
    num_series: int
    num_points: int
    num_means: int
    shown_by: str


def export(job_id: str, tracker: str, to: Path | str = ".", *, on_progress: Told | None = None) -> Procedure[Exported]:
    """Exports all series of an ended job, with its spec as parameters, as a run of `tracker`: mlflow (the store
    mlflow.db in the folder `to`), tensorboard or wandb (a folder in `to`, named after the job). Needs the tracker's
    extra of this package. A job that is already there is refused. `on_progress(steps so far, total steps)` is called on
    progress."""
    if tracker not in TRACKERS:
        raise ValueError(f"tracker: one of {', '.join(TRACKERS)}, got {tracker!r}")
    job = yield from show(job_id)
    if not job.is_over:
        detail = f"{job.id} is {job.state}. Export it after it has ended (`laminar wait {job.id}`)."
        raise Conflict(409, {"code": "invalid_state", "detail": detail})
    if job.id != Path(job.id).name:
        raise LaminarError(f"The server returned the job id {job.id!r:.100}, which is not a valid folder name.")
    ends = yield from metrics(job.id, max_points=2)
    last = {name: int(line[-1][0]) for name, line in ends.series.items() if line}
    with TRACKERS[tracker](job, Path(to)) as run:
        num_points, num_means = yield from _copied(job, last, run.write, on_progress or (lambda so_far, in_all: None))
    return Exported(
        place=run.place,
        num_series=len(last),
        num_points=num_points,
        num_means=num_means,
        shown_by=run.shown_by,
    )


def _copied(
    job: Job, last: Mapping[str, int], write: Callable[[Sequence[Point]], None], on_progress: Told
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
        on_progress(min(first + width, end), end)
    return num_points, num_means


def steps_a_window(num_series: int) -> int:
    width = POINTS_A_PAGE // max(1, num_series) // ROLLUP * ROLLUP
    return max(ROLLUP, min(MOST_STEPS, width))


def points_of(page: Metrics, at: float) -> list[Point]:
    """Sorted by step, then by time and name; `at` is the time of the point before the page."""
    found = []
    for name, line in page.series.items():
        before = at
        for (step, value), moment in zip(line, page.times[name], strict=True):
            before = before if moment is None else moment.timestamp()
            found.append(Point(int(step), before, name, float("nan") if value is None else float(value)))
    return sorted(found)
