"""Series as pages draw them: few points, however long the job ran.

Invariants:
- a drawn series has at most MAX_POINTS points; each keeps its lowest and highest, so no spike is smoothed away;
- it ends where the series ends: the end of a chart is the current value shown next to it;
- for a step trained by two attempts, the later one counts, and after a rollback the series ends where the run is;
- the ends of a series, and a few values of many series, are read by the primary key: no scan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from django.db import connection
from django.db.models import Q

from backend.jobs.models import Job
from backend.telemetry.models import MetricPoint, MetricSeries
from backend.telemetry.selectors import Line, MetricsPage
from backend.telemetry.series.thinned import thinned_metrics
from backend.telemetry.valid_points import POINT_IS_VALID

MAX_POINTS: Final = 160
"""Per series on page load: half the pixels of a small chart. Zooming in requests its range."""

# The first point may exist only in the rollups: a rollup of a single point has its step and value.
_ENDS: Final = f"""
SELECT series.name, first.step, first.value, newest.steps, newest.values
FROM telemetry_metricseries AS series
CROSS JOIN LATERAL (
    (SELECT step, value FROM telemetry_metricpoint WHERE series_id = series.id ORDER BY step, attempt DESC LIMIT 1)
    UNION ALL
    (SELECT last_step, total / count FROM telemetry_metricrollup
     WHERE series_id = series.id AND size = (SELECT min(size) FROM telemetry_metricrollup WHERE series_id = series.id)
       AND series.is_reduced ORDER BY first_step LIMIT 1)
    ORDER BY step LIMIT 1
) AS first
CROSS JOIN LATERAL (
    SELECT array_agg(step ORDER BY step) AS steps, array_agg(value ORDER BY step) AS values
    FROM (SELECT DISTINCT ON (step) step, value FROM telemetry_metricpoint WHERE series_id = series.id
          AND {POINT_IS_VALID} ORDER BY step DESC, attempt DESC LIMIT %(num_last)s) AS latest
) AS newest
WHERE series.job_id = %(job)s AND series.name = ANY(%(names)s)
"""  # noqa: S608  # built from constants


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The first point and the last points of a series, by step."""

    first: tuple[int, float]
    newest: Line
    """The last steps, the newest last. At least one."""


def drawn_series(job: Job, names: Sequence[str]) -> MetricsPage:
    """Six digits per number: more cannot be seen, and would double the size of a page."""
    page = thinned_metrics(job, MAX_POINTS, names)
    return replace(
        page,
        series={name: [(step, _short(mean)) for step, mean in line] for name, line in page.series.items()},
        bands={
            name: [(step, _short(low), _short(high)) for step, low, high in band] for name, band in page.bands.items()
        },
    )


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def ends_of_series(job: Job, names: Sequence[str], *, num_last: int) -> dict[str, Ends]:
    """`num_last`: number of last steps to return."""
    with connection.cursor() as db:
        db.execute(_ENDS, {"job": job.pk, "names": list(names), "num_last": num_last})
        return {
            name: Ends(first=(step, value), newest=list(zip(steps, values, strict=True)))
            for name, step, value, steps, values in db.fetchall()
            if steps
        }


def few_values(jobs: Sequence[Job], shown: Mapping[str, tuple[str, Sequence[int]]]) -> dict[str, list[float]]:
    """Values by job id. `shown`, by job id too: the name of the series and the steps to read."""
    names = {name for name, _ in shown.values()}
    rows = MetricSeries.objects.filter(job__in=jobs, name__in=names).values_list("job_id", "name", "id")
    series = {job_id: series_id for job_id, name, series_id in rows if shown[job_id][0] == name}
    selection = Q(pk__in=[])
    for job in jobs:
        if job.pk in series:
            attempts = range(1, job.num_attempts + 1)
            selection |= Q(series=series[job.pk], attempt__in=attempts, step__in=shown[job.pk][1])
    values: dict[int, dict[int, float]] = {}
    points = MetricPoint.objects.filter(selection).order_by("attempt", "step")
    for series_id, step, value in points.values_list("series_id", "step", "value"):
        values.setdefault(series_id, {})[step] = value  # a later attempt replaces an earlier one
    return {
        job.pk: [value for _, value in sorted(values[series[job.pk]].items())]
        for job in jobs
        if series.get(job.pk) in values
    }
