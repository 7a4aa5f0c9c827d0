"""The initial content of a job's page: readable without a script, and small however long the job ran.

Invariant: the job's cursor is read before its points, so points written meanwhile are pulled again, never missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q

from backend.jobs.models import Job, JobState
from backend.pages.job.panels.charts import EVERY_KEY
from backend.telemetry.selectors import LastPoint, MetricsPage, series_of
from backend.telemetry.series.drawing import drawn_series

_MOST_MARKS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    cursor: int
    drawn: MetricsPage
    marks: Sequence[Mapping[str, Any]]
    """Marks on the charts: type and data of events."""
    last: Sequence[LastPoint]

    @property
    def last_by_name(self) -> Mapping[str, float]:
        return {each.name: each.value for each in self.last}


def snapshot_of(job: Job, keys: Sequence[str] = EVERY_KEY) -> Snapshot:
    """For a job whose row was just read, with the points of the drawn series."""
    return Snapshot(
        cursor=job.cursor,
        drawn=drawn_series(job, keys) if keys else MetricsPage(cursor=job.cursor, series={}, more=False),
        marks=_marks(job) if keys else [],
        last=series_of(job),
    )


def _marks(job: Job) -> Sequence[Mapping[str, Any]]:
    """For the newest checkpoints and evaluations, and attempts with the step from which they resumed."""
    kept = Q(type__in=("checkpoint_saved", "evaluated")) | Q(to_state=JobState.STARTING)
    return list(job.events.filter(kept).order_by("-seq")[:_MOST_MARKS].values("type", "data"))
