"""Reduces jobs that ended long ago: points to their rollups (a sixteenth of the rows, same means and extremes), spans
of replicas to sums per minute.

Invariants:
- only points in the rollups are deleted, so a short job keeps every point forever;
- a series is marked in the transaction that deletes its points, so readers miss none;
- each call does a bounded piece; the next tick continues.
"""

from datetime import datetime, timedelta
from typing import Final

from django.db import connection, transaction

from backend.jobs.models import TERMINAL_STATES
from backend.telemetry.models import MetricSeries, ReplicaActivity

SERIES_A_CALL: Final = 20
ROWS_A_CALL: Final = 5_000

_REDUCE: Final = """
DELETE FROM telemetry_metricpoint AS point USING telemetry_metricseries AS series
WHERE series.id = ANY(%s) AND point.series_id = series.id AND point.step < series.rolled_to
"""


def forget_old_spans(*, keep: timedelta, now: datetime, limit: int = ROWS_A_CALL) -> int:
    """Returns the number of rows deleted; their sums per minute stay."""
    old = ReplicaActivity.objects.filter(job__state__in=TERMINAL_STATES, job__finished_at__lt=now - keep)
    return ReplicaActivity.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()[0]


def reduce_old_series(*, keep: timedelta, now: datetime, limit: int = SERIES_A_CALL) -> int:
    """Returns the number of series reduced."""
    with transaction.atomic():
        old = MetricSeries.objects.select_for_update(of=("self",), skip_locked=True).filter(
            is_reduced=False, rolled_to__gt=0, job__state__in=TERMINAL_STATES, job__finished_at__lt=now - keep
        )
        ids = list(old.order_by("id").values_list("id", flat=True)[:limit])
        if ids:
            MetricSeries.objects.filter(pk__in=ids).update(is_reduced=True)
            with connection.cursor() as db:
                db.execute(_REDUCE, [ids])
    return len(ids)
