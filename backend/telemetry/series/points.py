"""Writes points of metric series.

Invariants:
- a point is written once per (series, step, attempt); repeats are no-ops;
- a job has at most `MOST_SERIES` names, so metric names made from data cannot fill the disk;
- a value lies within ±`LARGEST_VALUE`: sums of its squares, in rollups and in readers, are finite;
- rollups are updated in the same transaction.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from backend.jobs.models import Job
from backend.telemetry.models import MetricSeries
from backend.telemetry.series.rollups import Written, keep_rolled

log = logging.getLogger(__name__)

MOST_SERIES = 500
LARGEST_VALUE = 1e100  # far beyond any measurement; sums of squares over a whole series are finite

# COPY writes 70 to 80 thousand points a second, the other two statements together 34 to 58 thousand; but it takes three
# statements, and a step of a running job has only about fifty points.
LEAST_TO_COPY = 1_000

_STAGE = """
CREATE TEMPORARY TABLE IF NOT EXISTS new_points
    (series_id bigint, step bigint, at timestamptz, value float8, cursor bigint) ON COMMIT DELETE ROWS
"""
_COPY = "COPY new_points (series_id, step, at, value, cursor) FROM STDIN (FORMAT BINARY)"
_TYPES = ["int8", "int8", "timestamptz", "float8", "int8"]
_MERGE = """
INSERT INTO telemetry_metricpoint (series_id, attempt, step, at, value, cursor)
SELECT series_id, %s, step, at, value, cursor FROM new_points
ON CONFLICT DO NOTHING
"""

_INSERT = """
INSERT INTO telemetry_metricpoint (series_id, attempt, step, at, value, cursor)
SELECT series_id, %s, step, at, value, cursor
FROM unnest(%s::bigint[], %s::bigint[], %s::timestamptz[], %s::float8[], %s::bigint[])
    AS new (series_id, step, at, value, cursor)
ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPoint:
    name: str
    step: int
    at: datetime
    value: float
    cursor: int


def store_points(job: Job, attempt: int, points: Sequence[NewPoint]) -> bool:
    """False if points of names beyond the limit were dropped. The caller has locked the job."""
    if not points:
        return True
    series = _series(job, {point.name for point in points})
    kept = [point for point in points if point.name in series]
    ids = {name: each.pk for name, each in series.items()}
    _write(attempt, [(ids[point.name], point.step, point.at, _bounded(point.value), point.cursor) for point in kept])
    keep_rolled(_extents(kept, series))
    return len(kept) == len(points)


def _bounded(value: float) -> float:
    return max(-LARGEST_VALUE, min(LARGEST_VALUE, value))


def _write(attempt: int, rows: Sequence[tuple[int, int, datetime, float, int]]) -> None:
    with connection.cursor() as db:
        if len(rows) < LEAST_TO_COPY:
            db.execute(_INSERT, [attempt, *([row[at] for row in rows] for at in range(5))])
            return
        db.execute(_STAGE)
        with db.copy(_COPY) as copy:
            copy.set_types(_TYPES)
            for row in rows:
                copy.write_row(row)
        db.execute(_MERGE, [attempt])
        # Deleted now, not at commit: the same transaction may bring another batch.
        db.execute("DELETE FROM new_points")


def _extents(points: Sequence[NewPoint], series: Mapping[str, MetricSeries]) -> list[Written]:
    extents: dict[str, tuple[int, int]] = {}
    for point in points:
        first, last = extents.get(point.name, (point.step, point.step))
        extents[point.name] = (min(first, point.step), max(last, point.step))
    return [
        Written(series_id=series[name].pk, rolled_to=series[name].rolled_to, first_step=first, last_step=last)
        for name, (first, last) in extents.items()
    ]


def _series(job: Job, names: set[str]) -> dict[str, MetricSeries]:
    known = {series.name: series for series in MetricSeries.objects.filter(job=job)}
    missing = sorted(names - known.keys())[: MOST_SERIES - len(known)]
    if missing:
        created = MetricSeries.objects.bulk_create(MetricSeries(job=job, name=name) for name in missing)
        known |= {series.name: series for series in created}
    return known
