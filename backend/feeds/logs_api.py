"""GET /jobs/{id}/logs/stream: a job's log lines as they are written, as Server-Sent Events."""

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Header, Query, Router, Status

from backend.accounts.keys.bearer import MAY_READ, caller_of
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.feeds.log_lines import LogSource, Place, place_of_tail
from backend.feeds.opening import inbox_of, stream_doc, streamed
from backend.jobs.selectors import the_job
from backend.telemetry.logs.batches import Wanted, batches_from
from backend.telemetry.models import RemovedKind
from backend.telemetry.removal import refuse_if_removed
from backend.telemetry.replicas.api import MOST_LINES
from engine.spec.facts import LogLevel
from engine.spec.strict import Text

router = Router(tags=["Activity"])


@router.get(
    "/jobs/{job_id}/logs/stream",
    auth=MAY_READ,
    response={200: None, 204: None} | problems(404, 410, 422),
    summary="Stream log lines",
    openapi_extra={
        "responses": {200: stream_doc("`id`, `event` (`line`, or `dropped` for dropped lines) and `data`, a LineOut")}
    },
)
def log_stream(
    request: HttpRequest,
    job_id: PathId,
    component: Annotated[Text | None, Query(max_length=60)] = None,
    level: Annotated[LogLevel, Query(description="This level and above.")] = "debug",
    q: Annotated[Text | None, Query(max_length=200, description="Text in the line, case-insensitive.")] = None,
    tail: Annotated[int, Query(ge=0, le=MOST_LINES, description="Start with about this many existing lines.")] = 200,
    last_event_id: Annotated[
        Text | None,
        Header(alias="Last-Event-ID", max_length=30, description="Resume after this `id`; ignores `tail`."),
    ] = None,
) -> Any:
    """The newest lines, then each new line until the job ends: each exactly once, also across reconnections with
    `Last-Event-ID`. 204: the job has ended and you have received all lines."""
    caller = caller_of(request)
    job = the_job(caller.team, job_id)
    refuse_if_removed(job, RemovedKind.LOGS)
    wanted = Wanted(component=component, least_level=level, text=(q or "").lower())
    place = Place.read(last_event_id) if last_event_id else place_of_tail(job, wanted, tail=tail)
    if last_event_id and job.is_terminal and not batches_from(job, place.whole_before, wanted).exists():
        return Status(204, None)
    inbox = inbox_of(caller)
    inbox.jobs = {job.pk: job.team_id}
    return streamed(request, caller, LogSource(job, place, wanted), inbox)
