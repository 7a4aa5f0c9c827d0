"""REST: the metrics of a job."""

from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import Field

from backend.accounts.keys.bearer import MAY_READ, caller_of
from backend.api.problems import problems
from backend.borders.types import LARGEST, PathId
from backend.jobs.selectors import the_job
from backend.telemetry.representations import MetricsOut, SeriesOut
from backend.telemetry.selectors import metrics_since, series_of
from backend.telemetry.series.thinned import thinned_metrics
from engine.spec.strict import Text

router = Router(tags=["Telemetry"])

SeriesName = Annotated[Text, Field(min_length=1, max_length=100)]


@router.get(
    "/jobs/{job_id}/metrics", auth=MAY_READ, response={200: MetricsOut} | problems(404, 422), summary="Get metrics"
)
def metrics(
    request: HttpRequest,
    job_id: PathId,
    after: Annotated[int, Query(ge=0, le=LARGEST, description="`cursor` of your last response.")] = 0,
    names: Annotated[list[SeriesName], Query(max_length=100, description="Only these series; may be repeated.")] = [],  # noqa: B006  # ninja needs a list; it is never changed
    max_points: Annotated[int | None, Query(ge=2, le=2_000, description="Per series.")] = None,
    from_step: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
    to_step: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
    times: Annotated[bool, Query(description="Include when each point was measured.")] = False,
) -> MetricsOut:
    """All points since a cursor, page by page. Or, with `max_points` or a range of steps and no `after`: series of at
    most that length (default 500), each point the mean of a range of steps, with its lowest and highest in `bands`.
    Points that a later attempt rolled back are not in these."""
    job = the_job(caller_of(request).team, job_id)
    if after == 0 and (max_points is not None or from_step is not None or to_step is not None):
        page = thinned_metrics(
            job,
            max_points or 500,
            names,
            from_step=from_step or 0,
            to_step=LARGEST if to_step is None else to_step,
            times=times,
        )
        return MetricsOut.of(page, times=times)
    return MetricsOut.of(metrics_since(job, after, names), times=times)


@router.get(
    "/jobs/{job_id}/metrics/names",
    auth=MAY_READ,
    response={200: list[SeriesOut]} | problems(404),
    summary="List series",
)
def metric_names(request: HttpRequest, job_id: PathId) -> list[SeriesOut]:
    """Sorted by name, each with its newest point."""
    return [SeriesOut.of(series) for series in series_of(the_job(caller_of(request).team, job_id))]
