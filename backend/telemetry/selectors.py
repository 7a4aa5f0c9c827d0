"""Read access to series and trajectories.

Invariants:
- `cursor > N` is everything new since N, and an answer never ends inside a fact, so nothing is skipped or repeated;
- if a later attempt trained a step again, the later value is shown;
- every answer is bounded.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import F, QuerySet

from backend.jobs.models import Job
from backend.telemetry.models import MetricPoint, Trajectory
from backend.telemetry.valid_points import POINT_IS_VALID

MOST_POINTS = 5_000
"""An answer of this size is 100 to 200 kB of JSON. A single fact has at most 200 points, so progress is certain."""

Line = list[tuple[int, float]]
Band = list[tuple[int, float, float]]
Times = list[datetime | None]

# The lateral join reads each series by its index (series, cursor), so the cost depends on the new points only.
_SINCE = f"""
SELECT series.name, point.step, point.value, point.at, point.cursor
FROM telemetry_metricseries AS series
CROSS JOIN LATERAL (
    SELECT step, value, at, cursor FROM telemetry_metricpoint
    WHERE series_id = series.id AND cursor > %(after)s AND cursor <= %(upto)s
        AND (%(undone_too)s OR {POINT_IS_VALID})
    ORDER BY cursor LIMIT %(limit)s
) AS point
WHERE series.job_id = %(job)s AND (%(names)s::text[] IS NULL OR series.name = ANY(%(names)s))
ORDER BY point.cursor, series.name LIMIT %(limit)s
"""  # noqa: S608  # built from constants

_NEWEST = f"""
SELECT series.name, newest.step, newest.value
FROM telemetry_metricseries AS series
CROSS JOIN LATERAL (
    SELECT step, value FROM telemetry_metricpoint WHERE series_id = series.id AND {POINT_IS_VALID}
    ORDER BY cursor DESC LIMIT 1
) AS newest
WHERE series.job_id = %(job)s ORDER BY series.name
"""  # noqa: S608  # built from constants


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage:
    cursor: int
    """Pass as the next cursor."""
    series: Mapping[str, Line]
    more: bool
    bands: Mapping[str, Band] = field(default_factory=dict)
    """Lowest and highest value around each step, for series down-sampled to means."""
    counts: Mapping[str, list[int]] = field(default_factory=dict)
    """Number of points in each mean."""
    times: Mapping[str, Times] = field(default_factory=dict)
    """When each point of `series` was measured; None for a point stored only as part of a rollup."""


def metrics_since(
    job: Job,
    cursor: int,
    names: Sequence[str] | None = None,
    *,
    upto: int | None = None,
    undone_too: bool = True,
    limit: int = MOST_POINTS,
) -> MetricsPage:
    """Oldest news first. A repeated step replaces the reader's earlier value. `undone_too`: includes points that a
    later attempt rolled back."""
    upto = current_cursor(job) if upto is None else upto
    values = {"job": job.pk, "names": _array(names), "after": cursor, "upto": upto}
    values |= {"limit": limit + 1, "undone_too": undone_too}
    rows = _rows(_SINCE, values)
    more = len(rows) > limit
    if more:
        upto = rows[limit][-1] - 1
    lines: dict[str, dict[int, tuple[float, datetime]]] = {}
    for name, step, value, at, at_cursor in rows:
        if at_cursor <= upto:
            lines.setdefault(name, {})[step] = value, at
    in_order = {name: sorted(line.items()) for name, line in lines.items()}
    return MetricsPage(
        cursor=max(upto, cursor),
        series={name: [(step, value) for step, (value, _) in line] for name, line in in_order.items()},
        times={name: [at for _, (_, at) in line] for name, line in in_order.items()},
        more=more,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPoint:
    name: str
    step: int
    value: float


def series_of(job: Job) -> list[LastPoint]:
    """By name, with the last written point: the latest attempt's."""
    return [LastPoint(name=name, step=step, value=value) for name, step, value in _rows(_NEWEST, {"job": job.pk})]


def trajectories(job: Job, step: int | None = None, limit: int = 20) -> QuerySet[Trajectory]:
    """Newest first."""
    rows = Trajectory.objects.filter(job=job).order_by("-cursor", "prompt_ordinal", "sample")
    if step is not None:
        rows = rows.filter(step=step)
    return rows[:limit]


def steps_to_read(job: Job) -> QuerySet[Trajectory, int]:
    """Steps with a stored trajectory."""
    return Trajectory.objects.filter(job=job).values_list("step", flat=True)


def trajectories_of_step(job: Job, step: int) -> list[Trajectory]:
    """Those of the latest attempt that trained the step, the best first."""
    of_step = Trajectory.objects.filter(job=job, step=step)
    rows = list(of_step.order_by("-attempt", F("reward").desc(), "prompt_ordinal", "sample"))
    return [row for row in rows if row.attempt == rows[0].attempt]


def values_at_step(job: Job, *, step: int, attempt: int, names: Iterable[str]) -> dict[str, float]:
    """Values of that attempt, or of the last earlier one that trained the step. Fills `metrics.values_at`."""
    points = MetricPoint.objects.filter(series__job=job, series__name__in=[*names], step=step, attempt__lte=attempt)
    return dict(points.order_by("attempt").values_list("series__name", "value"))


def values_at_steps(job: Job, name: str, steps: Collection[int]) -> list[tuple[int, int, float]]:
    """Attempt, step and value, earlier attempts first."""
    points = MetricPoint.objects.filter(series__job=job, series__name=name, step__in=steps)
    return list(points.order_by("attempt").values_list("attempt", "step", "value"))


def current_cursor(job: Job) -> int:
    """Read from the database: everything up to it is committed."""
    return Job.objects.values_list("cursor", flat=True).get(pk=job.pk)


def _array(names: Sequence[str] | None) -> list[str] | None:
    return list(names) if names else None


def _rows(query: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as db:
        db.execute(query, values)
        return list(db.fetchall())
