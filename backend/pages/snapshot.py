"""What a job's page holds when it first arrives: enough to be read without a script, small however long the job ran.

Invariants:
- the job's cursor is read before its points, so that what is written meanwhile is pulled again, never missed;
- a series has at most MAX_POINTS points; each bucket keeps its lowest and highest, so no spike is smoothed away;
- where two attempts trained the same step, the later one counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import F, OuterRef, Q, Subquery

from backend.jobs.models import Job
from backend.pages.charts import HELD_OUT, HELD_OUT_SPREAD, KEYS, REWARD, STEP_S, UNTRUSTED
from backend.telemetry.models import MetricPoint, MetricSeries, Trajectory
from backend.telemetry.thinned_series import thinned_metrics

LONG = 8_192  # steps; a longer series is drawn from its rollups
MAX_POINTS = 500  # a trace; more cannot be told apart on a screen and costs the browser
NUM_SAMPLED_STEPS = 12  # of the newest trajectories; older ones of this visit stay in the browser
_PACE_OVER_STEPS = 20  # recent enough to follow a change of speed, long enough to be calm
_MIN_STEPS_TO_FORETELL = 3
_MIN_ANSWERED_TO_FORETELL = 0.1  # of all prompts: the first to be answered are the short ones

Points = list[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastValue:
    key: str
    step: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    cursor: int
    series: Mapping[str, Points]
    last: Sequence[LastValue]
    trajectories: Sequence[Trajectory]
    last_by_key: Mapping[str, float] = field(default_factory=dict)

    @property
    def held_out_first(self) -> float | None:
        points = self.series.get(HELD_OUT) or []
        return points[0][1] if points else None

    @property
    def held_out_last(self) -> float | None:
        """Of a second evaluation; before and after are two."""
        points = self.series.get(HELD_OUT) or []
        return points[-1][1] if len(points) > 1 else None

    @property
    def held_out_after(self) -> float | None:
        """The newest, where nothing was measured before training, as in a job that began with a checkpoint."""
        points = self.series.get(HELD_OUT) or []
        return points[-1][1] if points and points[0][0] > 0 else None

    @property
    def held_out_change(self) -> float | None:
        first, last = self.held_out_first, self.held_out_last
        return None if first is None or last is None else last - first

    @property
    def held_out_spread(self) -> float | None:
        return self.last_by_key.get(HELD_OUT_SPREAD)

    @property
    def reward_now(self) -> float | None:
        return self.last_by_key.get(REWARD)

    @property
    def untrusted_now(self) -> float | None:
        """The share of the newest step's trajectories of which nothing was learned."""
        return self.last_by_key.get(UNTRUSTED)

    @property
    def newest_step(self) -> int | None:
        return self.trajectories[0].step if self.trajectories else None

    @property
    def newest_trajectories(self) -> list[Trajectory]:
        return [each for each in self.trajectories if each.step == self.newest_step]


def snapshot_of(job: Job) -> Snapshot:
    last = _last_values(job)
    return Snapshot(
        cursor=job.cursor,
        series=_thinned_series(job),
        last=last,
        trajectories=_newest_trajectories(job),
        last_by_key={each.key: each.value for each in last},
    )


def time_left(job: Job, series: Mapping[str, Points], *, now: datetime) -> timedelta | None:
    """By the pace of the last steps, or of all answers; nothing while there are too few to tell."""
    fewest = job.num_to_do * _MIN_ANSWERED_TO_FORETELL if job.only_evaluates else _MIN_STEPS_TO_FORETELL
    if job.started_at is None or job.is_terminal or job.num_done < fewest:
        return None
    if job.only_evaluates and job.num_attempts > 1:
        return None  # it began anew, its clock did not
    recent = [value for _, value in series.get(STEP_S, [])[-_PACE_OVER_STEPS:]]
    pace = sum(recent) / len(recent) if recent else (now - job.started_at).total_seconds() / job.num_done
    return timedelta(seconds=pace * max(0, job.num_to_do - job.num_done))


# min and max of [value, step] find a bucket's extremes and where they are in one pass, without another sort.
_THINNED = """
WITH newest AS (
  SELECT DISTINCT ON (p.series_id, p.step) s.name, p.step, p.value
  FROM telemetry_metricpoint p JOIN telemetry_metricseries s ON s.id = p.series_id
  WHERE s.job_id = %(job)s AND s.name = ANY(%(names)s)
  ORDER BY p.series_id, p.step, p.attempt DESC
), extent AS (
  SELECT name, min(step) AS low, max(step) AS high FROM newest GROUP BY name
)
SELECT name, min(ARRAY[value, step]), max(ARRAY[value, step])
FROM newest JOIN extent USING (name)
GROUP BY name, (step - low) * %(buckets)s / (high - low + 1)
"""


def _thinned_series(job: Job) -> dict[str, Points]:
    of_job = MetricSeries.objects.filter(job=job, name__in=KEYS)
    long = set(of_job.filter(Q(is_reduced=True) | Q(rolled_to__gt=LONG)).values_list("name", flat=True))
    points = _thinned_points(job, [name for name in KEYS if name not in long])
    return points | (_thinned_rollups(job, sorted(long)) if long else {})


def _thinned_rollups(job: Job, names: Sequence[str]) -> dict[str, Points]:
    """The extremes of each bucket at its two ends: nearer cannot be seen, and no point is read."""
    page = thinned_metrics(job, MAX_POINTS // 2, names)
    found: dict[str, Points] = {}
    for name, line in page.series.items():
        found[name] = points = []
        before = max(0, 2 * line[0][0] - line[1][0]) if len(line) > 1 else 0
        bands = page.bands.get(name) or [(step, value, value) for step, value in line]
        for (step, mean), (_, low, high) in zip(line, bands, strict=True):
            points += [(before + 1, low), (step, high)] if before + 1 < step else [(step, mean)]
            before = step
    return found


def _thinned_points(job: Job, names: Sequence[str]) -> dict[str, Points]:
    found: dict[str, dict[int, float]] = {}
    with connection.cursor() as db:
        db.execute(_THINNED, {"job": job.pk, "names": list(names), "buckets": MAX_POINTS // 2})
        for name, *extremes in db.fetchall():
            found.setdefault(name, {}).update((int(step), value) for value, step in extremes)
    return {name: sorted(points.items()) for name, points in found.items()}


def _last_values(job: Job) -> list[LastValue]:
    newest = MetricPoint.objects.filter(series=OuterRef("pk")).order_by("-cursor")  # of the latest attempt
    rows = (
        MetricSeries.objects.filter(job=job)
        .annotate(last_step=Subquery(newest.values("step")[:1]), last_value=Subquery(newest.values("value")[:1]))
        .exclude(last_step=None)
        .order_by("name")
        .values_list("name", "last_step", "last_value")
    )
    return [LastValue(key=name, step=step, value=value) for name, step, value in rows]


def _newest_trajectories(job: Job) -> list[Trajectory]:
    """Newest step first; of a step, the highest reward first."""
    steps = Trajectory.objects.filter(job=job).order_by("-step").values_list("step", flat=True)
    wanted = list(dict.fromkeys(steps[: NUM_SAMPLED_STEPS * 32]))[
        :NUM_SAMPLED_STEPS
    ]  # 32: the most that a fact carries
    rows = Trajectory.objects.filter(job=job, step__in=wanted)
    return list(rows.order_by("-step", "-attempt", F("reward").desc(), "prompt_ordinal", "sample"))
