"""Events as a page or as Server-Sent Events: /jobs/{id}/events and /events."""

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Header, Query, Router, Status

from backend.accounts.keys.bearer import MAY_READ, caller_of
from backend.api.pagination import DEFAULT_LIMIT, Limit
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.feeds.opening import inbox_of, stream_doc, streamed, wants_stream
from backend.feeds.sources import JobSource, TeamSource, refuse_forgotten
from backend.jobs.rest.representations import EventsOut, represent_event
from backend.jobs.selectors import events_after, the_job

router = Router(tags=["Events"])

LastEventId = Annotated[
    int | None,
    Header(alias="Last-Event-ID", ge=0, le=2**62, description="Resume after this `id`; browsers send it themselves."),
]
_STREAM_DOC = stream_doc("`id`, `event` (the type) and `data` (JSON)")


@router.get(
    "/jobs/{job_id}/events",
    auth=MAY_READ,
    response={200: EventsOut, 204: None} | problems(404, 410, 422),
    summary="List or stream a job's events",
    openapi_extra={"responses": {200: _STREAM_DOC}},
)
def job_events(
    request: HttpRequest,
    job_id: PathId,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="The last `seq` that you have received.")] = 0,
    limit: Limit = DEFAULT_LIMIT,
    last_event_id: LastEventId = None,
) -> Any:
    """With `Accept: text/event-stream`: the events since `Last-Event-ID` (or `after`), then new ones until the job
    ends; 204 if it has ended and you have received all of them. Otherwise a page, oldest first."""
    caller = caller_of(request)
    job = the_job(caller.team, job_id)
    as_stream = wants_stream(request)
    seq = last_event_id if as_stream and last_event_id is not None else after
    refuse_forgotten(job, seq)
    if as_stream:
        if job.is_terminal and not events_after(job, seq).exists():
            return Status(204, None)
        inbox = inbox_of(caller)
        inbox.jobs = {job.pk: job.team_id}
        return streamed(request, caller, JobSource(job, seq), inbox)
    events = list(events_after(job, seq)[: limit + 1])
    page = events[:limit]
    return EventsOut(
        data=[represent_event(event) for event in page],
        has_more=len(events) > limit,
        next_after=page[-1].seq if page else seq,
    )


@router.get(
    "/events",
    auth=MAY_READ,
    response={200: None} | problems(410, 422),
    summary="Stream the team's events",
    openapi_extra={"responses": {200: _STREAM_DOC}},
)
def team_events(request: HttpRequest, last_event_id: LastEventId = None) -> Any:
    """Streams every event of all the team's jobs from now on. After reconnecting with `Last-Event-ID`, events of the
    last minute may repeat: `job_id` and `seq` identify an event. 410: disconnected for more than a day."""
    caller = caller_of(request)
    inbox = inbox_of(caller)
    inbox.teams = frozenset({caller.team.pk})
    return streamed(request, caller, TeamSource(caller.team, last_event_id), inbox)
