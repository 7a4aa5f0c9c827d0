"""What was used, and what of it may still be."""

from datetime import date, datetime

from .record import Answer, record


@record
class Budget(Answer):
    gpu_seconds: int | None
    spent: float
    committed: float
    left: float | None


@record
class Kinds(Answer):
    """Device-seconds. The five kinds add up to `held`; `billed` is `held` less `credited`."""

    held: float
    startup: float
    useful: float
    stale: float
    fault: float
    idle: float
    credited: float
    billed: float


@record
class UsageGroup(Answer):
    group: str
    label: str
    seconds: Kinds


@record
class Usage(Answer):
    group_by: str
    first: date
    last: date
    as_of: datetime
    total: Kinds
    data: list[UsageGroup]
    has_more: bool = False
    next_after: str | None = None


@record
class JobUsage(Answer):
    as_of: datetime
    total: Kinds
