"""Metrics, trajectories and live news in the API and for pages."""

from datetime import datetime
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from backend.jobs.models import Job
from backend.jobs.rest.representations import EventOut, ProgressOut
from backend.telemetry.fulltext.searched_texts import Passage
from backend.telemetry.models import Trajectory
from backend.telemetry.selectors import Band, LastPoint, Line, MetricsPage, Times


class MetricsOut(BaseModel):
    cursor: int = Field(description="Pass as `after` to get only newer points.")
    series: dict[str, Line] = Field(description="[step, value] by step; in a sampled series, the mean around the step.")
    bands: dict[str, Band] = Field(description="[step, lowest, highest] for sampled series.")
    counts: dict[str, list[int]] = Field(description="Number of points in each mean, for sampled series.")
    times: dict[str, Times] = Field(
        description="With `times=true`, when each point of `series` was measured; null if only a mean is stored."
    )
    more: bool = Field(description="More data is available; request it at once.")

    @classmethod
    def of(cls, page: MetricsPage, *, times: bool) -> Self:
        measured = dict(page.times) if times else {}
        return cls(
            cursor=page.cursor,
            series=dict(page.series),
            bands=dict(page.bands),
            counts=dict(page.counts),
            times=measured,
            more=page.more,
        )


class SeriesOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    name: str
    step: int = Field(description="Step of the newest point.")
    value: float

    @classmethod
    def of(cls, point: LastPoint) -> Self:
        return cls.model_validate(point)


class PassageOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    place: str = Field(description="prompt, response, remark or reason; in a turn: text, tool, arguments or error.")
    turn: int | None = Field(description="Index in `turns` of the full trajectory, from 0; null if not in a turn.")
    start: int = Field(description="Start of the match, in characters of the full text.")
    before: str = Field(description="Text before the match; `after` is the text behind it.")
    match: str
    after: str


class TrajectoryOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    job_id: str
    trajectory_id: str = Field(description="Full trajectory with tokens: GET /jobs/{job_id}/trajectories/{this}.")
    attempt: int
    step: int
    prompt_ordinal: int
    sample: int
    version: int = Field(description="Version of the weights that generated it.")
    staleness: int
    num_tokens: int
    reward: float
    advantage: float
    outcome: str = Field(
        description="Reported by the engine: rewarded, cut (too long), untrusted (not trained on), timeout, error."
    )
    prompt: str = Field(description="The first 4,000 characters, as for the other texts.")
    response: str
    remark: str = Field(description="The environment's note on its reward, or on why there is none.")
    end: str = Field(description="How it ended: trained, filtered (equal rewards in its group), dropped_stale, failed.")
    reason: str = Field(description="Reason of that end, if it was not trained.")
    group_size: int = Field(description="Samples of its question; 0 if the engine did not report it.")
    num_turns: int = Field(description="Messages in the response; 0 if it is one message of the model.")
    passage: PassageOut | None = Field(default=None, description="In a search: the first match.")

    @classmethod
    def of(cls, trajectory: Trajectory, passage: Passage | None = None) -> Self:
        known = cls.model_validate(trajectory)
        return known if passage is None else known.model_copy(update={"passage": PassageOut.model_validate(passage)})


class JobSummary(BaseModel):
    """A job as its page shows it, next to its spec."""

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
    """News of a job since a cursor."""

    cursor: int
    job: JobSummary
    events: list[EventOut]
    series: dict[str, Line]
    sampled_step: int | None
    """The step of the newest trajectories since that cursor; None if there are none."""
    more: bool
