"""Metrics, trajectories, checkpoints and live news, as programs and pages see them."""

from datetime import datetime
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from backend.jobs.models import Job
from backend.jobs.rest.representations import EventOut, ProgressOut
from backend.telemetry.fulltext.said import Passage
from backend.telemetry.models import Trajectory
from backend.telemetry.selectors import Band, LastPoint, Line, MetricsPage, Times


class MetricsOut(BaseModel):
    cursor: int = Field(description="Ask again with `after=cursor` for what is new since.")
    series: dict[str, Line] = Field(description="[step, value] by step; of a sampled series, the mean around the step.")
    bands: dict[str, Band] = Field(description="[step, lowest, highest], for series that were sampled.")
    counts: dict[str, list[int]] = Field(description="Of how many points each mean is, for series that were sampled.")
    times: dict[str, Times] = Field(
        description="With `times=true`, when each point of `series` was measured; null of what is kept as a mean only."
    )
    more: bool = Field(description="There is more already; ask again at once.")

    @classmethod
    def of(cls, page: MetricsPage, *, times: bool) -> Self:
        told = dict(page.times) if times else {}
        return cls(
            cursor=page.cursor,
            series=dict(page.series),
            bands=dict(page.bands),
            counts=dict(page.counts),
            times=told,
            more=page.more,
        )


class SeriesOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    name: str
    step: int = Field(description="Of the newest point.")
    value: float

    @classmethod
    def of(cls, point: LastPoint) -> Self:
        return cls.model_validate(point)


class PassageOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    place: str = Field(description="prompt, response, remark or reason; of a turn its text, tool, arguments or error.")
    turn: int | None = Field(description="Its number in `turns` of the whole, from 0; null: it is in no turn.")
    start: int = Field(description="Of the match, in characters of that text of the whole.")
    before: str = Field(description="A few words before it, as `after` behind it.")
    match: str
    after: str


class TrajectoryOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    job_id: str
    trajectory_id: str = Field(description="Of the whole, with its tokens: GET /jobs/{job_id}/trajectories/{this}.")
    attempt: int
    step: int
    prompt_ordinal: int
    sample: int
    version: int = Field(description="Of the weights that generated it.")
    staleness: int
    num_tokens: int
    reward: float
    advantage: float
    outcome: str = Field(
        description="As the engine says: rewarded, cut (too long), untrusted (not learned from), timeout, error."
    )
    prompt: str = Field(description="Its first 4,000 characters, as of the other texts.")
    response: str
    remark: str = Field(description="Of the environment, on its reward or on why there is none.")
    end: str = Field(
        description="What became of it: trained, filtered (its group teaches nothing), dropped_stale, failed."
    )
    reason: str = Field(description="For that end, where it was not trained.")
    group_size: int = Field(description="How many samples its question has; 0 where the engine did not tell.")
    num_turns: int = Field(description="Messages in the response; 0 where it is one message, by the model.")
    passage: PassageOut | None = Field(default=None, description="Of a search: the first place that answers it.")

    @classmethod
    def of(cls, trajectory: Trajectory, passage: Passage | None = None) -> Self:
        known = cls.model_validate(trajectory)
        return known if passage is None else known.model_copy(update={"passage": PassageOut.model_validate(passage)})


class JobSummary(BaseModel):
    """A job as its page shows it beside its spec."""

    id: str
    name: str
    state: str
    phase: str
    reason: str
    message: str
    failure_class: str
    step: int
    steps: int
    progress: ProgressOut
    num_attempts: int
    is_terminal: bool
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, job: Job) -> Self:
        plain = {name: getattr(job, name) for name in cls.model_fields if name != "progress"}
        return cls(**plain, progress=ProgressOut.of(job))


class LiveDelta(BaseModel):
    """The news of a job since a cursor."""

    cursor: int
    job: JobSummary
    events: list[EventOut]
    series: dict[str, Line]
    sampled_step: int | None
    """The step of the newest trajectories since that cursor; None: there are none."""
    more: bool
