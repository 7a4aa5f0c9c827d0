"""The content of a job's page when it first arrives: readable without a script, small however long the job ran.

Invariant: the job's cursor is read before its points, so that what is written meanwhile is pulled again, never missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.jobs.models import Job
from backend.pages.charts import EVERY_KEY
from backend.telemetry.drawing import drawn_series
from backend.telemetry.representations import TrajectoryOut
from backend.telemetry.selectors import LastPoint, Line, series_of, trajectories_of_newest_steps

NUM_STEPS_READ = 12  # of the newest trajectories; older ones of this visit stay in the browser


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    cursor: int
    series: Mapping[str, Line]
    last: Sequence[LastPoint]
    trajectories: Sequence[TrajectoryOut]

    @property
    def last_by_name(self) -> Mapping[str, float]:
        return {each.name: each.value for each in self.last}

    @property
    def newest_step(self) -> int | None:
        return self.trajectories[0].step if self.trajectories else None

    @property
    def newest_trajectories(self) -> list[TrajectoryOut]:
        return [each for each in self.trajectories if each.step == self.newest_step]


def snapshot_of(job: Job) -> Snapshot:
    """Of a job whose row was just read."""
    return Snapshot(
        cursor=job.cursor,
        series=drawn_series(job, EVERY_KEY),
        last=series_of(job),
        trajectories=[TrajectoryOut.of(row) for row in trajectories_of_newest_steps(job, NUM_STEPS_READ)],
    )
