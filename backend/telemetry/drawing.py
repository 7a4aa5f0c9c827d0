"""Series as a page draws them: few points, however long the job ran.

Invariants:
- a drawn series has at most MAX_POINTS places; each keeps its lowest and highest, so no spike is smoothed away;
- it ends as the series does: the end of a chart is what is called "now" beside it;
- where two attempts did the same step, the later one counts, and where one went back, the series ends where it is;
- the ends of a series, and a few values of each of many, are looked up by the primary key: no scan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from django.db import connection
from django.db.models import Q

from backend.jobs.models import Job
from backend.telemetry.models import MetricPoint, MetricSeries
from backend.telemetry.selectors import Line, MetricsPage
from backend.telemetry.standing import POINT_STANDS
from backend.telemetry.thinned_series import thinned_metrics

MAX_POINTS: Final = 160
"""Of a series when a page arrives: half the pixels of a small chart. A closer look asks for its range."""

# The first point may have gone into the rollups: of a single point they keep step and value as they were.
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
          AND {POINT_STANDS} ORDER BY step DESC, attempt DESC LIMIT %(num_last)s) AS latest
) AS newest
WHERE series.job_id = %(job)s AND series.name = ANY(%(names)s)
"""  # noqa: S608  # put together of constants


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ends of a series, by step."""

    first: tuple[int, float]
    newest: Line
    """The last steps, the newest last. At least one."""


def drawn_series(job: Job, names: Sequence[str]) -> MetricsPage:
    """Six digits of each number: more cannot be seen, and are half the bytes of a page."""
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
    """`num_last`: how many of the last steps are told."""
    with connection.cursor() as db:
        db.execute(_ENDS, {"job": job.pk, "names": list(names), "num_last": num_last})
        return {
            name: Ends(first=(step, value), newest=list(zip(steps, values, strict=True)))
            for name, step, value, steps, values in db.fetchall()
            if steps
        }


def few_values(jobs: Sequence[Job], shown: Mapping[str, tuple[str, Sequence[int]]]) -> dict[str, list[float]]:
    """By job's id. `shown`, by job's id too: the name of the series and the steps of which the values are wanted."""
    names = {name for name, _ in shown.values()}
    rows = MetricSeries.objects.filter(job__in=jobs, name__in=names).values_list("job_id", "name", "id")
    series = {job_id: series_id for job_id, name, series_id in rows if shown[job_id][0] == name}
    wanted = Q(pk__in=[])
    for job in jobs:
        if job.pk in series:
            attempts = range(1, job.num_attempts + 1)
            wanted |= Q(series=series[job.pk], attempt__in=attempts, step__in=shown[job.pk][1])
    found: dict[int, dict[int, float]] = {}
    points = MetricPoint.objects.filter(wanted).order_by("attempt", "step")
    for series_id, step, value in points.values_list("series_id", "step", "value"):
        found.setdefault(series_id, {})[step] = value  # a later attempt's point replaces the earlier one's
    return {
        job.pk: [value for _, value in sorted(found[series[job.pk]].items())]
        for job in jobs
        if series.get(job.pk) in found
    }
