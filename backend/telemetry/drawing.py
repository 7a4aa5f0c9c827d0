"""Series as a page draws them: few points, however long the job ran.

Invariants:
- a drawn series has at most MAX_POINTS points; each bucket keeps its lowest and highest, so no spike is smoothed away;
- where two attempts did the same step, the later one counts;
- the ends of a series, and a few values of each of many, are looked up by the primary key: no scan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from django.db import connection
from django.db.models import Q

from backend.jobs.models import Job
from backend.telemetry.models import MetricPoint, MetricSeries
from backend.telemetry.selectors import Line
from backend.telemetry.thinned_series import thinned_metrics

LONG: Final = 8_192  # steps; a longer series is drawn from its rollups
MAX_POINTS: Final = 500  # a trace; more cannot be told apart on a screen and costs the browser

# min and max of [value, step] find a bucket's extremes and where they are in one pass, without another sort.
_EXTREMES: Final = """
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

# The first point may have gone into the rollups: of a single point they keep step and value as they were.
_ENDS: Final = """
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
          ORDER BY step DESC, attempt DESC LIMIT %(num_last)s) AS latest
) AS newest
WHERE series.job_id = %(job)s AND series.name = ANY(%(names)s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ends of a series, by step."""

    first: tuple[int, float]
    newest: Line
    """The last steps, the newest last. At least one."""


def drawn_series(job: Job, names: Sequence[str]) -> dict[str, Line]:
    of_job = MetricSeries.objects.filter(job=job, name__in=names)
    long = set(of_job.filter(Q(is_reduced=True) | Q(rolled_to__gt=LONG)).values_list("name", flat=True))
    points = _from_points(job, [name for name in names if name not in long])
    return points | (_from_rollups(job, sorted(long)) if long else {})


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


def _from_rollups(job: Job, names: Sequence[str]) -> dict[str, Line]:
    """The extremes of each bucket at its two ends: nearer cannot be seen, and no point is read."""
    page = thinned_metrics(job, MAX_POINTS // 2, names)
    found: dict[str, Line] = {}
    for name, line in page.series.items():
        found[name] = points = []
        before = max(0, 2 * line[0][0] - line[1][0]) if len(line) > 1 else 0
        bands = page.bands.get(name) or [(step, value, value) for step, value in line]
        for (step, mean), (_, low, high) in zip(line, bands, strict=True):
            points += [(before + 1, low), (step, high)] if before + 1 < step else [(step, mean)]
            before = step
    return found


def _from_points(job: Job, names: Sequence[str]) -> dict[str, Line]:
    found: dict[str, dict[int, float]] = {}
    with connection.cursor() as db:
        db.execute(_EXTREMES, {"job": job.pk, "names": list(names), "buckets": MAX_POINTS // 2})
        for name, *extremes in db.fetchall():
            found.setdefault(name, {}).update((int(step), value) for value, step in extremes)
    return {name: sorted(points.items()) for name, points in found.items()}
