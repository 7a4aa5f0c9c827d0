"""Why a job waits, or why it failed."""

from dataclasses import field
from datetime import datetime

from .record import Answer, record


@record
class Smaller(Answer):
    devices: int
    fewer: int
    replicas: int


@record
class Wait(Answer):
    reason: str
    message: str
    position: int | None
    starts_at: datetime | None
    starts_with_fewer: Smaller | None
    starts_as_preemptible: bool


@record
class LastLine(Answer):
    at: datetime
    component: str
    level: str
    message: str


@record
class Evidence(Answer):
    exit_reason: str = ""
    phase: str = ""
    step: int = 0
    faults: list[str] = field(default_factory=list)
    lines: list[LastLine] = field(default_factory=list)
    log_tail: str = ""


@record
class Failure(Answer):
    failure_class: str
    cause: str
    advice: str
    attempt: int
    evidence: Evidence
    resume_step: int | None


@record
class Explanation(Answer):
    job: str
    state: str
    reason: str
    message: str
    evaluated_at: datetime | None
    waiting: Wait | None = None
    failure: Failure | None = None
