"""REST: the replicas' timeline, and the log lines of every part."""

from datetime import datetime, timedelta
from typing import Annotated, Self

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import BaseModel, ConfigDict, Field

from backend.accounts.bearer import MAY_READ, caller_of
from backend.api.problems import problems
from backend.borders.types import LARGEST, Moment, PathId
from backend.clock import database_now
from backend.errors import FieldError, Invalid
from backend.jobs.models import Job
from backend.jobs.selectors import the_job
from backend.telemetry.activity import ReplicaTimeline, replica_timeline
from backend.telemetry.logs import Lines, Wanted, components_of, last_lines, lines_after
from backend.telemetry.models import RemovedKind
from backend.telemetry.removal import refuse_if_removed
from backend.telemetry.selectors import current_cursor
from engine.spec.facts import LogLevel
from engine.spec.strict import Text

router = Router(tags=["Activity"])

MOST_LINES = 2_000


class SpanOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    attempt: int
    replica: int
    incarnation: int
    version: int = Field(description="Of the weights that it held when it told.")
    doing: str
    start: datetime
    end: datetime


class CellOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    attempt: int
    replica: int
    doing: str
    start: datetime
    seconds: float


class TimelineOut(BaseModel):
    since: datetime
    until: datetime
    spans: list[SpanOut] = Field(description="Clipped; empty where there would be more than 5,000.")
    cells: list[CellOut] = Field(description="Then: seconds of each stretch by what was done.")
    cell_s: int = Field(description="The length of a stretch; 0 where there are spans.")

    @classmethod
    def of(cls, timeline: ReplicaTimeline, since: datetime, until: datetime) -> Self:
        return cls(
            since=since,
            until=until,
            spans=[SpanOut.model_validate(span) for span in timeline.spans],
            cells=[CellOut.model_validate(cell) for cell in timeline.cells],
            cell_s=timeline.cell_s,
        )


class LineOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    at: datetime
    attempt: int
    component: str
    level: str
    message: str


class LinesOut(BaseModel):
    lines: list[LineOut] = Field(description="Oldest first.")
    cursor: int = Field(description="With `after`: send it as the next `after`. Else: as the next `before`.")
    newest: int = Field(description="To follow from here on, send it as `after`.")
    more: bool
    num_dropped: int = Field(description="Lines that were left out because there were too many.")
    components: list[str]

    @classmethod
    def of(cls, found: Lines, components: list[str], newest: int) -> Self:
        return cls(
            lines=[LineOut.model_validate(line) for line in found.lines],
            cursor=found.cursor,
            newest=newest,
            more=found.more,
            num_dropped=found.num_dropped,
            components=components,
        )


@router.get(
    "/jobs/{job_id}/timeline",
    auth=MAY_READ,
    response={200: TimelineOut} | problems(404, 422),
    summary="What replicas did when",
)
def timeline(
    request: HttpRequest,
    job_id: PathId,
    since: Annotated[Moment | None, Query(alias="from")] = None,
    until: Annotated[Moment | None, Query(alias="to")] = None,
) -> TimelineOut:
    """Spans of every replica; the newest five minutes unless told."""
    job = the_job(caller_of(request).team, job_id)
    last = until or job.finished_at or database_now()
    first = since or last - timedelta(minutes=5)
    if first >= last:
        raise Invalid(errors=[FieldError(pointer="/query/from", code="range", message="must be before `to`")])
    return TimelineOut.of(replica_timeline(job, first, last), first, last)


@router.get(
    "/jobs/{job_id}/logs", auth=MAY_READ, response={200: LinesOut} | problems(404, 410, 422), summary="Log lines"
)
def logs(
    request: HttpRequest,
    job_id: PathId,
    component: Annotated[Text | None, Query(max_length=60)] = None,
    level: Annotated[LogLevel, Query(description="And above.")] = "debug",
    q: Annotated[Text | None, Query(max_length=200, description="Words in the line, upper or lower case.")] = None,
    after: Annotated[int | None, Query(ge=0, le=LARGEST, description="Follow: what came after this cursor.")] = None,
    before: Annotated[int | None, Query(ge=0, le=LARGEST, description="Go back from this cursor.")] = None,
    tail: Annotated[int, Query(ge=1, le=MOST_LINES, description="About how many lines.")] = 200,
) -> LinesOut:
    """The newest lines; or, with `after`, those that came since. 410: it ended so long ago that they were removed."""
    job: Job = the_job(caller_of(request).team, job_id)
    refuse_if_removed(job, RemovedKind.LOGS)
    wanted = Wanted(component=component, least_level=level, text=(q or "").lower())
    newest = current_cursor(job)  # before the lines: what comes meanwhile comes again, and nothing is missed
    if after is not None:
        found = lines_after(job, after, wanted, limit=tail)
        newest = found.cursor
    else:
        found = last_lines(job, wanted, tail=tail, before=before)
    return LinesOut.of(found, components_of(job), newest)
