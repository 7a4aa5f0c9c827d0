"""REST: the replicas' timeline and what they hold, where all samples went, and the log lines of every part."""

from collections.abc import Sequence
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
from backend.telemetry.ledger import ledger_of
from backend.telemetry.logs import Lines, Wanted, components_of, last_lines, lines_after
from backend.telemetry.models import RemovedKind, SampleLedger
from backend.telemetry.removal import refuse_if_removed
from backend.telemetry.replica_states import ReplicaHeld, replicas_held, states_between
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


class ReplicaOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    attempt: int
    replica: int
    incarnation: int
    version: int = Field(description="Of the weights that it holds.")
    at: datetime = Field(description="When it told.")
    kv_used: float = Field(description="The share of its cache of keys and values that is in use, 0 to 1.")
    num_running: int = Field(description="Trajectories that it writes at this moment.")
    num_waiting: int = Field(description="Those that wait for room in it.")
    num_with_environment: int = Field(description="Those whose environment answers.")
    num_prefilled: int = Field(description="Tokens read since this incarnation began.")
    num_decoded: int = Field(description="Tokens written since this incarnation began.")


class ReplicasOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    num_replicas: int = Field(
        description="That there are. Of very many, some tell at a time, each in its turn: these are as many as "
        "`replicas` has. 0: not told."
    )
    replicas: list[ReplicaOut] = Field(description="What each said last, by number.")


class TimelineOut(BaseModel):
    since: datetime
    until: datetime
    spans: list[SpanOut] = Field(description="Clipped; empty where there would be more than 5,000.")
    cells: list[CellOut] = Field(description="Then: seconds of each stretch by what was done.")
    cell_s: int = Field(description="The length of a stretch; 0 where there are spans.")
    states: list[ReplicaOut] | None = Field(
        description="What replicas held, as often as they told; null where it would be more than 5,000."
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
    attempt: int | None = Field(description="That told it last; null where nothing is told yet.")
    step: int | None = Field(description="The last one trained when it was told.")
    at: datetime | None
    is_final: bool = Field(description="It is the last word of that attempt, also on what ended after its last step.")
    counts: dict[str, int] = Field(
        description="Samples by what became of them, over all attempts: trained, filtered, dropped_stale, failed; "
        "open: asked for and without an end; rolled_back: trained into weights that were lost."
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
    return TimelineOut.of(replica_timeline(job, first, last), states_between(job, first, last), first, last)


@router.get(
    "/jobs/{job_id}/replicas", auth=MAY_READ, response={200: ReplicasOut} | problems(404), summary="What replicas hold"
)
def replicas(request: HttpRequest, job_id: PathId) -> ReplicasOut:
    """Their caches, rows and tokens, as each told last; forgotten with the spans of the timeline."""
    return ReplicasOut.model_validate(replicas_held(the_job(caller_of(request).team, job_id)))


@router.get(
    "/jobs/{job_id}/ledger", auth=MAY_READ, response={200: LedgerOut} | problems(404), summary="Where all samples went"
)
def ledger(request: HttpRequest, job_id: PathId) -> LedgerOut:
    """By the engine's own count, as of the last step."""
    return LedgerOut.of(ledger_of(the_job(caller_of(request).team, job_id)))


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
