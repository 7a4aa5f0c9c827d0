"""Reads whole series, or a range of their steps, in a bounded number of points.

    from ├─ points ─┤──────────── rollups ────────────├─ points ─┤ to

Invariants:
- every point of the range is in exactly one bucket: its mean, lowest and highest are exact, not estimates;
- the cost depends on the points drawn, not on the job's length: at most 16 rollups per drawn point, and two edges;
- for a step trained by several attempts the latest counts, and steps that a later attempt rolled back do not count;
- a bucket's time is that of its newest point, queried separately for buckets from rollups, and only on request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import connection
from django.db.backends.utils import CursorWrapper

from backend.jobs.models import Job
from backend.telemetry.selectors import Band, Line, MetricsPage, Times, current_cursor
from backend.telemetry.series.rollups import SIZES
from backend.telemetry.valid_points import POINT_IS_VALID

LAST: Final = 2**63 - 1

_EXTENTS: Final = f"""
SELECT id, name, rolled_to, is_reduced,
    coalesce((SELECT min(first_step) FROM telemetry_metricrollup WHERE series_id = series.id AND size = %(largest)s),
             (SELECT step FROM telemetry_metricpoint WHERE series_id = series.id ORDER BY step LIMIT 1)),
    greatest((SELECT last_step FROM telemetry_metricrollup WHERE series_id = series.id AND size = %(largest)s
              ORDER BY first_step DESC LIMIT 1),
             (SELECT step FROM telemetry_metricpoint WHERE series_id = series.id AND {POINT_IS_VALID}
              ORDER BY step DESC LIMIT 1))
FROM telemetry_metricseries AS series
WHERE job_id = %(job)s AND (%(names)s::text[] IS NULL OR name = ANY(%(names)s))
ORDER BY name
"""  # noqa: S608  # built from constants

_PIECES: Final = f"""
WITH wanted AS (
    SELECT * FROM unnest(%(series)s::bigint[], %(sizes)s::int[], %(lows)s::bigint[], %(begins)s::bigint[],
        %(ends)s::bigint[], %(highs)s::bigint[], %(newests)s::bigint[])
        AS wanted (series_id, size, low, rolled_from, rolled_upto, high, newest)
), piece AS (
    SELECT wanted.*, latest.step, latest.step AS last_step, 1 AS count, value AS total, value AS lowest,
        value AS highest, at
    FROM wanted CROSS JOIN LATERAL (
        SELECT DISTINCT ON (step) step, value, at FROM telemetry_metricpoint AS point
        WHERE point.series_id = wanted.series_id AND step >= wanted.low AND step < wanted.rolled_from
            AND {POINT_IS_VALID}
        ORDER BY step, attempt DESC
    ) AS latest
    UNION ALL
    SELECT wanted.*, rollup.first_step, rollup.last_step, rollup.count, rollup.total, rollup.low, rollup.high,
        NULL::timestamptz
    FROM wanted JOIN telemetry_metricrollup AS rollup ON rollup.series_id = wanted.series_id
        AND rollup.size = wanted.size AND rollup.first_step >= wanted.rolled_from
        AND rollup.first_step < wanted.rolled_upto
    UNION ALL
    SELECT wanted.*, latest.step, latest.step, 1, value, value, value, at
    FROM wanted CROSS JOIN LATERAL (
        SELECT DISTINCT ON (step) step, value, at FROM telemetry_metricpoint AS point
        WHERE point.series_id = wanted.series_id AND step >= wanted.rolled_upto AND step <= wanted.high
            AND {POINT_IS_VALID}
        ORDER BY step, attempt DESC
    ) AS latest
), extent AS (
    SELECT series_id, sum(count) > %(max_points)s AS is_thinned FROM piece GROUP BY series_id
)
SELECT series_id, max(last_step), sum(total) / sum(count), min(lowest), max(highest), sum(count), is_thinned, max(at)
FROM piece JOIN extent USING (series_id)
GROUP BY series_id, is_thinned,
    CASE WHEN NOT is_thinned THEN step
        WHEN step = newest THEN %(max_points)s
        ELSE greatest(step - low, 0) * (%(max_points)s - (newest = high)::int) / (high - low + 1) END
ORDER BY series_id, max(last_step)
"""  # noqa: S608  # built from constants

# By the primary key. Points that exist only as part of a rollup have no time.
_MEASURED: Final = """
SELECT series_id, step, at
FROM unnest(%s::bigint[], %s::bigint[]) AS wanted (series_id, step)
CROSS JOIN LATERAL (
    SELECT at FROM telemetry_metricpoint AS point
    WHERE point.series_id = wanted.series_id AND point.step = wanted.step ORDER BY attempt DESC LIMIT 1
) AS latest
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to read one series: points in [low, rolled_from), rollups up to `rolled_upto`, points up to `high`."""

    series_id: int
    size: int
    low: int
    rolled_from: int
    rolled_upto: int
    high: int
    newest: int
    """The last step of the series, inside the range or not."""


def thinned_metrics(
    job: Job,
    max_points: int,
    names: Sequence[str] | None = None,
    *,
    from_step: int = 0,
    to_step: int = LAST,
    times: bool = False,
) -> MetricsPage:
    """Each series in at most `max_points` means; a short series comes point by point, without bands. Its newest point
    is never averaged: pages show it as the current value."""
    cursor = current_cursor(job)
    series: dict[str, Line] = {}
    bands: dict[str, Band] = {}
    measured: dict[str, Times] = {}
    counts: dict[str, list[int]] = {}
    with connection.cursor() as db:
        db.execute(_EXTENTS, {"job": job.pk, "names": list(names) if names else None, "largest": SIZES[-1]})
        known, plans = {}, []
        for series_id, name, rolled_to, is_reduced, first, last in db.fetchall():
            if first is None or last is None or first > to_step or last < from_step:
                continue
            known[series_id] = name
            low, high = max(first, from_step), min(last, to_step)
            plans.append(_plan(series_id, (low, high, last), rolled_to, is_reduced, max_points))
        if plans:
            db.execute(_PIECES, _columns(plans) | {"job": job.pk, "max_points": max_points})
            rows = db.fetchall()
            ends = _measured(db, rows) if times else {}
            for series_id, step, mean, lowest, highest, count, is_thinned, at in rows:
                series.setdefault(known[series_id], []).append((step, mean))
                measured.setdefault(known[series_id], []).append(at or ends.get((series_id, step)))
                if is_thinned:
                    bands.setdefault(known[series_id], []).append((step, lowest, highest))
                    counts.setdefault(known[series_id], []).append(int(count))
    return MetricsPage(cursor=cursor, series=series, more=False, bands=bands, counts=counts, times=measured)


def _measured(db: CursorWrapper, rows: Sequence[tuple[Any, ...]]) -> dict[tuple[int, int], datetime]:
    """Times of the last points of buckets that were read from rollups."""
    from_rollups = [(row[0], row[1]) for row in rows if row[-1] is None]
    if not from_rollups:
        return {}
    db.execute(_MEASURED, [[series_id for series_id, _ in from_rollups], [step for _, step in from_rollups]])
    return {(series_id, step): at for series_id, step, at in db.fetchall()}


def _plan(series_id: int, steps: tuple[int, int, int], rolled_to: int, is_reduced: bool, max_points: int) -> Plan:
    """`steps`: the first and last of the range, and the newest of the series."""
    low, high, newest = steps
    size = max((each for each in SIZES if each <= (high - low + 1) / max_points), default=0)
    if is_reduced and low < rolled_to:  # only rollups are left there, so the edges extend beyond the range
        size = size or SIZES[0]
        begin, end = low // size * size, min(high + 1, rolled_to)
    elif size:
        # The last rollup ends where the rollups end, complete or not.
        begin, end = -(-low // size) * size, rolled_to if high >= rolled_to else (high + 1) // size * size
    if not size or begin >= end:
        size, begin, end = SIZES[0], low, low
    return Plan(series_id=series_id, size=size, low=low, rolled_from=begin, rolled_upto=end, high=high, newest=newest)


def _columns(plans: Sequence[Plan]) -> dict[str, list[Any]]:
    return {
        "series": [plan.series_id for plan in plans],
        "sizes": [plan.size for plan in plans],
        "lows": [plan.low for plan in plans],
        "begins": [plan.rolled_from for plan in plans],
        "ends": [plan.rolled_upto for plan in plans],
        "highs": [plan.high for plan in plans],
        "newests": [plan.newest for plan in plans],
    }
