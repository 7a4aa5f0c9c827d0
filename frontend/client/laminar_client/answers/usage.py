"""Usage, costs and budgets."""

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
class Cost(Answer):
    """Money, each amount an exact decimal as text. `billed` is `held` less `credited`."""

    currency: str
    held: str
    credited: str
    billed: str


@record
class UsageGroup(Answer):
    group: str
    label: str
    seconds: Kinds
    cost: Cost | None = None


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
    total_cost: Cost | None = None


@record
class JobUsage(Answer):
    as_of: datetime
    total: Kinds
    total_cost: Cost | None = None
