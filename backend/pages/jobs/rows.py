"""The job list: its rows, the counts of each state, and the progress of each job.

Invariant: a page costs a fixed number of queries, and each of its jobs a fixed number of index look-ups, however many
points the job has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, QuerySet

from backend.jobs.models import Job
from backend.pages.job.panels.charts import HELD_OUT, REWARD
from backend.telemetry.series.drawing import few_values
from backend.verdicts.selectors import alarm_texts

_SPARK_POINTS = 40
_SPARK_WIDTH, _SPARK_HEIGHT = 96.0, 26.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    job: Job
    now: datetime
    rewards: Sequence[float] = ()
    """A few points of the whole run, including the first and the newest."""
    alarm: str = ""
    """One word; empty without an alarm."""

    @property
    def reward(self) -> float | None:
        return self.rewards[-1] if self.rewards else None

    @property
    def change(self) -> float | None:
        return self.rewards[-1] - self.rewards[0] if len(self.rewards) > 1 else None

    @property
    def elapsed(self) -> timedelta | None:
        if self.job.started_at is None:
            return None
        return (self.job.finished_at or self.now) - self.job.started_at

    @property
    def spark(self) -> str:
        """The `points` of an SVG polyline."""
        if len(self.rewards) < 2:
            return ""
        low, high = min(self.rewards), max(self.rewards)
        width, height = _SPARK_WIDTH / (len(self.rewards) - 1), (_SPARK_HEIGHT - 4) / ((high - low) or 1)
        return " ".join(
            f"{i * width:.1f},{_SPARK_HEIGHT - 2 - (r - low) * height:.1f}" for i, r in enumerate(self.rewards)
        )


def num_by_state(jobs: QuerySet[Job]) -> dict[str, int]:
    return dict(jobs.order_by().values_list("state").annotate(num=Count("id")))


def rows_of(jobs: Sequence[Job], *, now: datetime) -> list[JobRow]:
    rewards, alarms = _rewards_of(jobs), alarm_texts(jobs)
    return [JobRow(job=job, now=now, rewards=rewards.get(job.pk, ()), alarm=alarms.get(job.pk, "")) for job in jobs]


def _rewards_of(jobs: Sequence[Job]) -> dict[str, list[float]]:
    drawn = [job for job in jobs if job.step or not job.steps]
    shown = {job.pk: (REWARD, _steps_shown(job.step)) if job.steps else (HELD_OUT, [job.step]) for job in drawn}
    return few_values(drawn, shown)


def _steps_shown(last: int) -> list[int]:
    shown = {1 + round(i * (last - 1) / (_SPARK_POINTS - 1)) for i in range(_SPARK_POINTS)}
    return sorted(shown)
