"""Jobs, previews, attempts and faults."""

from dataclasses import field
from datetime import datetime
from typing import Any

from .record import Answer, record

TERMINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


@record
class Links(Answer):
    """Paths on the server."""

    page: str


@record
class Done(Answer):
    """Progress: steps trained, or, for an evaluation, prompts completed."""

    done: int
    total: int
    unit: str


@record
class Job(Answer):
    id: str
    name: str
    tags: list[str]
    project: str
    pool: str
    state: str
    phase: str
    reason: str
    message: str
    failure_class: str
    attempt: int
    devices: int
    step: int
    steps: int
    progress: Done
    spec: dict[str, Any]
    priority: int
    max_runtime_s: int
    parent: str | None
    start_from: str | None
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    created_by: str
    links: Links

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL_STATES


@record
class Fit(Answer):
    """Whether a job fits into the memory of the pool's devices, and the calculation, one term per line."""

    fits: bool
    message: str
    arithmetic: list[str]


@record
class Preset(Answer):
    """A default that depends on the model's size and family."""

    path: str
    value: float | int | str | None
    reason: str


@record
class Hint(Answer):
    """A warning about conflicting settings. It does not prevent submission."""

    path: str
    message: str


@record
class Cost(Answer):
    """At the pool's current price, in exact decimals."""

    currency: str
    an_hour: str
    an_hour_at_least: str
    at_most: str


@record
class Preview(Answer):
    spec: dict[str, Any]
    pool: str
    devices: int
    trajectories_per_step: int
    starts_at_once: bool
    reason: str
    message: str
    fit: Fit | None = None
    presets: list[Preset] = field(default_factory=list)
    hints: list[Hint] = field(default_factory=list)
    cost: Cost | None = None


@record
class Attempt(Answer):
    n: int
    created_at: datetime
    ended_at: datetime | None
    resume_from: str
    outcome: str
    message: str


@record
class Fault(Answer):
    seq: int
    at: datetime
    attempt: int
    component: str
    message: str
    action: str


@record
class Cancelled(Answer):
    """`result`: cancelled, already, finished or not_found."""

    id: str
    result: str


@record
class CancelledJobs(Answer):
    data: list[Cancelled]
