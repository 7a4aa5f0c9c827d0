"""REST: the replicas' timeline and state, the ends of all samples, and the log lines of every part."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Self

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import BaseModel, ConfigDict, Field

from backend.accounts.keys.bearer import MAY_READ, caller_of
from backend.api.problems import problems
from backend.borders.types import LARGEST, Moment, PathId
from backend.clock import database_now
from backend.errors import FieldError, Invalid
from backend.jobs.models import Job
from backend.jobs.selectors import the_job
from backend.telemetry.ledger import ledger_of
from backend.telemetry.logs.batches import Lines, Wanted, components_of, last_lines, lines_after
from backend.telemetry.models import RemovedKind, SampleLedger
from backend.telemetry.removal import refuse_if_removed
from backend.telemetry.replicas.activity import ReplicaTimeline, replica_timeline
from backend.telemetry.replicas.states import ReplicaHeld, replicas_held, states_between
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
    version: int = Field(description="Version of the weights that it held when it reported.")
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


class ReplicaOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    attempt: int
    replica: int
    incarnation: int
    version: int = Field(description="Version of the weights that it holds; −1: none yet.")
    at: datetime = Field(description="When it reported.")
    kv_used: float = Field(description="Fraction of its KV cache in use, 0 to 1.")
    num_running: int = Field(description="Trajectories being generated.")
    num_waiting: int = Field(description="Trajectories waiting for room.")
    num_with_environment: int = Field(description="Trajectories waiting for their environment.")
    num_prefilled: int = Field(description="Tokens prefilled since this incarnation began.")
    num_decoded: int = Field(description="Tokens generated since this incarnation began.")


class ReplicasOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    num_replicas: int = Field(
        description="Number of replicas. In a very large job only some report at a time, in turns: those are in "
        "`replicas`. 0: not reported."
    )
    replicas: list[ReplicaOut] = Field(description="The latest report of each replica, by number.")


class TimelineOut(BaseModel):
    since: datetime
    until: datetime
    spans: list[SpanOut] = Field(description="Clipped to the range. Empty if there are more than 5,000; see `cells`.")
    cells: list[CellOut] = Field(description="Instead of too many spans: seconds of each stretch by activity.")
    cell_s: int = Field(description="Length of a stretch; 0 if there are spans.")
    states: list[ReplicaOut] | None = Field(
        description="Every report of the replicas' state; null if there are more than 5,000."
    )

    @classmethod
    def of(
        cls, timeline: ReplicaTimeline, states: Sequence[ReplicaHeld] | None, since: datetime, until: datetime
    ) -> Self:
        return cls(
            since=since,
            until=until,
            spans=[SpanOut.model_validate(span) for span in timeline.spans],
            cells=[CellOut.model_validate(cell) for cell in timeline.cells],
            cell_s=timeline.cell_s,
            states=None if states is None else [ReplicaOut.model_validate(each) for each in states],
        )


class LedgerOut(BaseModel):
    attempt: int | None = Field(description="The attempt that reported last; null if none has.")
    step: int | None = Field(description="The last step trained at that report.")
    at: datetime | None
    is_final: bool = Field(description="The final report of that attempt, including what ended after its last step.")
    counts: dict[str, int] = Field(
        description="Samples by their end, over all attempts: trained, filtered, dropped_stale, failed; open: "
        "requested and not ended; replaced: failed, and another sample was started; rolled_back: trained into weights "
        "that were lost."
    )

    @classmethod
    def of(cls, ledger: SampleLedger | None) -> Self:
        if ledger is None:
            return cls(attempt=None, step=None, at=None, is_final=False, counts={})
        return cls.model_validate(ledger, from_attributes=True)


class LineOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    at: datetime
    attempt: int
    component: str
    level: str
    message: str


class LinesOut(BaseModel):
    lines: list[LineOut] = Field(description="Oldest first.")
    cursor: int = Field(description="With `after`: the next `after`. Otherwise: the next `before`.")
    newest: int = Field(description="To follow new lines, pass it as `after`.")
    more: bool
    num_dropped: int = Field(description="Lines dropped because there were too many.")
    components: list[str]

    @classmethod
    def of(cls, page: Lines, components: list[str], newest: int) -> Self:
        return cls(
            lines=[LineOut.model_validate(line) for line in page.lines],
            cursor=page.cursor,
            newest=newest,
            more=page.more,
            num_dropped=page.num_dropped,
            components=components,
        )


@router.get(
    "/jobs/{job_id}/timeline",
    auth=MAY_READ,
    response={200: TimelineOut} | problems(404, 422),
    summary="Get the replicas' timeline",
)
def timeline(
    request: HttpRequest,
    job_id: PathId,
    since: Annotated[Moment | None, Query(alias="from")] = None,
    until: Annotated[Moment | None, Query(alias="to")] = None,
) -> TimelineOut:
    """Spans of every replica. Default: the last five minutes."""
    job = the_job(caller_of(request).team, job_id)
    last = until or job.finished_at or database_now()
    first = since or last - timedelta(minutes=5)
    if first >= last:
        raise Invalid(errors=[FieldError(pointer="/query/from", code="range", message="must be before `to`")])
    return TimelineOut.of(replica_timeline(job, first, last), states_between(job, first, last), first, last)


@router.get(
    "/jobs/{job_id}/replicas", auth=MAY_READ, response={200: ReplicasOut} | problems(404), summary="Get replica states"
)
def replicas(request: HttpRequest, job_id: PathId) -> ReplicasOut:
    """Caches, trajectories and tokens, as each replica last reported. Deleted together with the timeline's spans."""
    return ReplicasOut.model_validate(replicas_held(the_job(caller_of(request).team, job_id)))


@router.get(
    "/jobs/{job_id}/ledger", auth=MAY_READ, response={200: LedgerOut} | problems(404), summary="Get the sample ledger"
)
def ledger(request: HttpRequest, job_id: PathId) -> LedgerOut:
    """Counts by the engine, as of the last step."""
    return LedgerOut.of(ledger_of(the_job(caller_of(request).team, job_id)))


@router.get(
    "/jobs/{job_id}/logs", auth=MAY_READ, response={200: LinesOut} | problems(404, 410, 422), summary="Get log lines"
)
def logs(
    request: HttpRequest,
    job_id: PathId,
    component: Annotated[Text | None, Query(max_length=60)] = None,
    level: Annotated[LogLevel, Query(description="This level and above.")] = "debug",
    q: Annotated[Text | None, Query(max_length=200, description="Text in the line, case-insensitive.")] = None,
    after: Annotated[int | None, Query(ge=0, le=LARGEST, description="Lines after this cursor.")] = None,
    before: Annotated[int | None, Query(ge=0, le=LARGEST, description="Lines before this cursor.")] = None,
    tail: Annotated[int, Query(ge=1, le=MOST_LINES, description="Approximate number of lines.")] = 200,
) -> LinesOut:
    """The newest lines, or with `after` those since then. 410: removed, because the job ended long ago."""
    job: Job = the_job(caller_of(request).team, job_id)
    refuse_if_removed(job, RemovedKind.LOGS)
    wanted = Wanted(component=component, least_level=level, text=(q or "").lower())
    newest = current_cursor(job)  # read first: lines in between come again, and none is missed
    if after is not None:
        page = lines_after(job, after, wanted, limit=tail)
        newest = page.cursor
    else:
        page = last_lines(job, wanted, tail=tail, before=before)
    return LinesOut.of(page, components_of(job), newest)
