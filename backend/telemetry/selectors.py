"""Reading series and trajectories.

Invariants:
- `cursor > N` is everything new since N, and an answer never ends inside one fact, so nothing is skipped or repeated;
- where a later attempt did a step again, the later one is shown;
- no answer is unbounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from backend.jobs.models import Job
from backend.telemetry.models import Trajectory

MOST_POINTS = 5_000
"""An answer of so many points is 100 to 200 kB of JSON. A single fact has at most 200, so there is always progress."""

Line = list[tuple[int, float]]
Band = list[tuple[int, float, float]]

# The lateral join reads each series by its index (series, cursor), so the cost follows what is new, not what there is.
_SINCE = """
SELECT series.name, point.step, point.value, point.cursor
FROM telemetry_metricseries AS series
CROSS JOIN LATERAL (
    SELECT step, value, cursor FROM telemetry_metricpoint
    WHERE series_id = series.id AND cursor > %(after)s AND cursor <= %(upto)s ORDER BY cursor LIMIT %(limit)s
) AS point
WHERE series.job_id = %(job)s AND (%(names)s::text[] IS NULL OR series.name = ANY(%(names)s))
ORDER BY point.cursor, series.name LIMIT %(limit)s
"""

# DISTINCT ON follows the primary key (series, attempt, step) closely enough; buckets are equal ranges of steps.
_SAMPLED = """
WITH latest AS (
    SELECT DISTINCT ON (series.id, point.step) series.id, series.name, point.step, point.value
    FROM telemetry_metricseries AS series JOIN telemetry_metricpoint AS point ON point.series_id = series.id
    WHERE series.job_id = %(job)s AND point.cursor <= %(upto)s
      AND (%(names)s::text[] IS NULL OR series.name = ANY(%(names)s))
    ORDER BY series.id, point.step, point.attempt DESC
), extent AS (
    SELECT id, min(step) AS low, max(step) AS high, count(*) > %(max_points)s AS is_sampled FROM latest GROUP BY id
)
SELECT name, max(step), avg(value), min(value), max(value), is_sampled
FROM latest JOIN extent USING (id)
GROUP BY name, is_sampled,
    CASE WHEN is_sampled THEN (step - low) * %(max_points)s / (high - low + 1) ELSE step END
ORDER BY name, max(step)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage:
    cursor: int
    """Ask again after this."""
    series: Mapping[str, Line]
    more: bool
    bands: Mapping[str, Band] = field(default_factory=dict)
    """Lowest and highest value around each step, for series that were down-sampled to means."""


def metrics_since(
    job: Job, cursor: int, names: Sequence[str] | None = None, *, upto: int | None = None, limit: int = MOST_POINTS
) -> MetricsPage:
    """Oldest news first. A step that appears again overwrites what the reader had for it."""
    upto = current_cursor(job) if upto is None else upto
    values = {"job": job.pk, "names": _array(names), "after": cursor, "upto": upto, "limit": limit + 1}
    rows = _rows(_SINCE, values)
    more = len(rows) > limit
    if more:
        upto = rows[limit][3] - 1
    lines: dict[str, dict[int, float]] = {}
    for name, step, value, at_cursor in rows:
        if at_cursor <= upto:
            lines.setdefault(name, {})[step] = value
    return MetricsPage(
        cursor=max(upto, cursor), series={name: sorted(line.items()) for name, line in lines.items()}, more=more
    )


def metrics_sampled(job: Job, max_points: int, names: Sequence[str] | None = None) -> MetricsPage:
    """Whole series, each in at most `max_points` means."""
    upto = current_cursor(job)
    rows = _rows(_SAMPLED, {"job": job.pk, "names": _array(names), "upto": upto, "max_points": max_points})
    series: dict[str, Line] = {}
    bands: dict[str, Band] = {}
    for name, step, mean, low, high, is_sampled in rows:
        series.setdefault(name, []).append((step, mean))
        if is_sampled:
            bands.setdefault(name, []).append((step, low, high))
    return MetricsPage(cursor=upto, series=series, more=False, bands=bands)


def trajectories(job: Job, step: int | None = None, limit: int = 20) -> QuerySet[Trajectory]:
    """Newest first."""
    found = Trajectory.objects.filter(job=job).order_by("-cursor", "prompt_ordinal", "sample")
    if step is not None:
        found = found.filter(step=step)
    return found[:limit]


def current_cursor(job: Job) -> int:
    """Fresh from the database: everything up to it is committed."""
    return Job.objects.values_list("cursor", flat=True).get(pk=job.pk)


def _array(names: Sequence[str] | None) -> list[str] | None:
    return list(names) if names else None


def _rows(query: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as db:
        db.execute(query, values)
        return list(db.fetchall())
