"""Rollups: summaries of 16, 128, 1,024 and 8,192 steps, so that a million points take a thousand rows to read.

    the rollups of a series end at rolled_to:
    steps   0 ──────────── rollups ────────────▶ rolled_to ──── points only ────▶ newest
                                                 (a multiple of 16)

Invariants:
- rollups contain exactly the points of steps below `rolled_to`, for each step the latest attempt's; nothing above it;
- a point for a step below moves `rolled_to` back behind that step in the same transaction, so a reader never uses a
  rollup that lacks the newest attempt;
- all of this happens under the job's lock, where points are written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from django.db import connection

from backend.telemetry.models import MetricRollup, MetricSeries

SIZES: Final = (16, 128, 1_024, 8_192)
"""Eight of each make one of the next. A reader takes the largest that is no coarser than what it draws: at most 16 rows
per drawn point."""
ROLL_AFTER: Final = 1_024
"""Steps that stay points only: read in a millisecond, and each series is rolled up once in 1,024 steps."""

_FROM_POINTS: Final = """
INSERT INTO telemetry_metricrollup (series_id, size, first_step, last_step, count, total, low, high)
SELECT wanted.series_id, %(size)s, step / %(size)s * %(size)s, max(step), count(*), sum(value), min(value), max(value)
FROM unnest(%(series)s::bigint[], %(starts)s::bigint[], %(ends)s::bigint[]) AS wanted (series_id, first, upto)
CROSS JOIN LATERAL (
    SELECT DISTINCT ON (step) step, value FROM telemetry_metricpoint AS point
    WHERE point.series_id = wanted.series_id AND step >= wanted.first AND step < wanted.upto
    ORDER BY step, attempt DESC
) AS latest
GROUP BY wanted.series_id, step / %(size)s
"""

# The row that contains `rolled_to` grows, hence the upsert.
_FROM_SMALLER: Final = """
INSERT INTO telemetry_metricrollup (series_id, size, first_step, last_step, count, total, low, high)
SELECT wanted.series_id, %(size)s, first_step / %(size)s * %(size)s, max(last_step), sum(count), sum(total), min(low),
    max(high)
FROM unnest(%(series)s::bigint[], %(starts)s::bigint[]) AS wanted (series_id, first)
JOIN telemetry_metricrollup AS part ON part.series_id = wanted.series_id AND part.size = %(smaller)s
    AND part.first_step >= wanted.first / %(size)s * %(size)s
GROUP BY wanted.series_id, first_step / %(size)s
ON CONFLICT (series_id, size, first_step) DO UPDATE SET last_step = excluded.last_step, count = excluded.count,
    total = excluded.total, low = excluded.low, high = excluded.high
"""

_MOVE: Final = """
UPDATE telemetry_metricseries SET rolled_to = wanted.upto
FROM unnest(%(series)s::bigint[], %(ends)s::bigint[]) AS wanted (series_id, upto) WHERE id = wanted.series_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The range of steps of one series that was just written."""

    series_id: int
    rolled_to: int
    first_step: int
    last_step: int


def keep_rolled(written: Iterable[Written]) -> None:
    """Call after storing points, in the same transaction."""
    due: dict[int, tuple[int, int]] = {}
    for each in written:
        rolled_to = each.rolled_to
        if each.first_step < rolled_to:
            rolled_to = _go_back(each.series_id, each.first_step)
        if each.last_step >= rolled_to + ROLL_AFTER:
            # Never beyond the newest step: an attempt resuming from here would have to go back at every batch.
            due[each.series_id] = (rolled_to, each.last_step // SIZES[0] * SIZES[0])
    if due:
        _roll(due)


def _go_back(series_id: int, step: int) -> int:
    """To the start of whole rollups of every size: happens once per restarted attempt, so simple is enough."""
    rolled_to = step // SIZES[-1] * SIZES[-1]
    MetricRollup.objects.filter(series_id=series_id, first_step__gte=rolled_to).delete()
    MetricSeries.objects.filter(pk=series_id).update(rolled_to=rolled_to)
    return rolled_to


def _roll(due: Mapping[int, tuple[int, int]]) -> None:
    values: dict[str, Any] = {
        "series": list(due),
        "starts": [start for start, _ in due.values()],
        "ends": [end for _, end in due.values()],
    }
    with connection.cursor() as db:
        db.execute(_FROM_POINTS, values | {"size": SIZES[0]})
        for smaller, size in pairwise(SIZES):
            db.execute(_FROM_SMALLER, values | {"size": size, "smaller": smaller})
        db.execute(_MOVE, values)
