"""Telemetry of a job: events, replica timelines, series, log lines and trajectories."""

from dataclasses import field
from datetime import datetime
from typing import Any

from .record import Answer, record


@record
class Event(Answer):
    seq: int
    at: datetime
    type: str
    actor: str
    from_state: str
    to_state: str
    reason: str
    message: str
    data: dict[str, Any]


@record
class TeamEvent(Event):
    job_id: str


@record
class EventPage(Answer):
    data: list[Event]
    has_more: bool
    next_after: int


@record
class ReplicaSpan(Answer):
    attempt: int
    replica: int
    incarnation: int
    version: int
    doing: str
    start: datetime
    end: datetime


@record
class ReplicaCell(Answer):
    """Seconds of one interval that were spent on one activity."""

    attempt: int
    replica: int
    doing: str
    start: datetime
    seconds: float


@record
class Timeline(Answer):
    """`spans`, or, if there would be too many, `cells` of `cell_s` seconds."""

    since: datetime
    until: datetime
    spans: list[ReplicaSpan]
    cells: list[ReplicaCell]
    cell_s: int


@record
class Metrics(Answer):
    """`series`: by name, [step, value]; downsampled series also have `bands`: [step, lowest, highest], and `counts`,
    the number of points behind each mean. `times`, if requested: when each point was measured; None for points that
    the server keeps only as a mean."""

    cursor: int
    series: dict[str, list[Any]]
    bands: dict[str, Any]
    times: dict[str, list[datetime | None]]
    more: bool
    counts: dict[str, list[int]] = field(default_factory=dict)


@record
class LogLine(Answer):
    at: datetime
    attempt: int
    component: str
    level: str
    message: str


@record
class LogLines(Answer):
    lines: list[LogLine]
    cursor: int
    more: bool
    num_dropped: int
    components: list[str]


@record
class Passage(Answer):
    """The first passage of a trajectory that matches a search."""

    place: str
    turn: int | None
    start: int
    before: str
    match: str
    after: str


@record
class Trajectory(Answer):
    """Texts are truncated; GET /jobs/{job_id}/trajectories/{trajectory_id} has the full texts and tokens."""

    trajectory_id: str
    attempt: int
    step: int
    prompt_ordinal: int
    sample: int
    version: int
    staleness: int
    num_tokens: int
    reward: float
    advantage: float
    outcome: str
    prompt: str
    response: str
    remark: str
    end: str = "trained"
    reason: str = ""
    passage: Passage | None = None
