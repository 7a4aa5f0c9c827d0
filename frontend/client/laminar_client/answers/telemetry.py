"""What happens in a job: its events, its replicas' time, its series, log lines and trajectories."""

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
    """Seconds of one stretch that were spent on one thing."""

    attempt: int
    replica: int
    doing: str
    start: datetime
    seconds: float


@record
class Timeline(Answer):
    """`spans`; or, where there would be too many, `cells` of `cell_s` seconds."""

    since: datetime
    until: datetime
    spans: list[ReplicaSpan]
    cells: list[ReplicaCell]
    cell_s: int


@record
class Metrics(Answer):
    """`series`: by name, [step, value]; sampled series also have `bands`: [step, lowest, highest], and `counts`: of how
    many points each mean is. `times`, if asked for: when each point was measured; None of what the server keeps as a
    mean only."""

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
    """The first place of a trajectory that answers a search."""

    place: str
    turn: int | None
    start: int
    before: str
    match: str
    after: str


@record
class Trajectory(Answer):
    """Its texts are beginnings: the whole, with its tokens, is GET /jobs/{job_id}/trajectories/{trajectory_id}."""

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
