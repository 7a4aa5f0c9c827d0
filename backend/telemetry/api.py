"""REST: what a job measured, showed and saved."""

from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import Field

from backend.accounts.bearer import MAY_READ, caller_of
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.checkpoints.selectors import checkpoints_of
from backend.jobs.selectors import the_job
from backend.telemetry.representations import CheckpointOut, MetricsOut, TrajectoryOut
from backend.telemetry.selectors import metrics_sampled, metrics_since, trajectories
from engine.spec.strict import Text

router = Router(tags=["Telemetry"])

LARGEST = 2**63 - 1
MOST_CHECKPOINTS = 200
SeriesName = Annotated[Text, Field(min_length=1, max_length=100)]


@router.get(
    "/jobs/{job_id}/metrics", auth=MAY_READ, response={200: MetricsOut} | problems(404, 422), summary="Metric series"
)
def metrics(
    request: HttpRequest,
    job_id: str,
    after: Annotated[int, Query(ge=0, le=LARGEST, description="`cursor` of your last answer.")] = 0,
    names: Annotated[
        list[SeriesName], Query(max_length=100, description="Only these series; may be given more than once.")
    ] = [],  # noqa: B006  # ninja wants the list itself; nobody changes it
    max_points: Annotated[int | None, Query(ge=2, le=2_000)] = None,
) -> MetricsOut:
    """All points since a cursor, page by page; or, with `max_points` and no `after`, whole series at most so long,
    each point the mean of a range of steps and `bands` its lowest and highest value."""
    job = the_job(caller_of(request).team, job_id)
    if max_points is not None and after == 0:
        return MetricsOut.of(metrics_sampled(job, max_points, names))
    return MetricsOut.of(metrics_since(job, after, names))


@router.get(
    "/jobs/{job_id}/trajectories",
    auth=MAY_READ,
    response={200: Page[TrajectoryOut]} | problems(404, 422),
    summary="Trajectories worth reading",
)
def sampled_trajectories(
    request: HttpRequest,
    job_id: str,
    step: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
) -> Page[TrajectoryOut]:
    """Newest first."""
    found = list(trajectories(the_job(caller_of(request).team, job_id), step, limit + 1))
    return Page(data=[TrajectoryOut.of(row) for row in found[:limit]], has_more=len(found) > limit)


@router.get(
    "/jobs/{job_id}/checkpoints",
    auth=MAY_READ,
    response={200: Page[CheckpointOut]} | problems(404),
    summary="Its checkpoints",
)
def checkpoints(request: HttpRequest, job_id: str) -> Page[CheckpointOut]:
    """Newest first; the first one is where the next attempt would go on from."""
    found = list(checkpoints_of(the_job(caller_of(request).team, job_id))[: MOST_CHECKPOINTS + 1])
    return Page(
        data=[CheckpointOut.of(row) for row in found[:MOST_CHECKPOINTS]], has_more=len(found) > MOST_CHECKPOINTS
    )
