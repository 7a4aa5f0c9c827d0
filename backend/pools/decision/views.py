"""Input and output of a scheduling decision. Pure data.

teams, holders, claims, the line ──PoolView──▶ decide ──Decision──▶ starts, reasons, preemptions, growth, claims
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class WaitingReason(StrEnum):
    """Reasons to wait, a closed list for pages and programs."""

    NOT_EVALUATED_YET = "not_evaluated_yet"  # no round has evaluated the job; `decide` never returns it
    EXCEEDS_MAX = "exceeds_max"  # more than the pool has, or than the team may ever use there
    POOL_CLOSED = "pool_closed"  # nothing starts in this pool for now
    MAINTENANCE = "maintenance"  # nothing starts on this site until an announced maintenance is over
    NO_SANDBOX = "no_sandbox"  # its environment runs untrusted code, which no host of the pool can confine
    BACKOFF_UNTIL = "backoff_until"  # its last start failed; it may try again later
    BUDGET = "budget"  # its maximum runtime exceeds what is left this month of the team's or another budget
    TEAM_CEILING = "team_ceiling"  # the team's quota, and what it may borrow, is in use
    BEHIND_PRIORITY = "behind_priority"  # its team's devices are held for an earlier job of the team
    RESERVED_BY_OTHERS = "reserved_by_others"  # enough devices are free, but other teams do not lend them
    POOL_FULL = "pool_full"  # not enough devices are free
    BACKFILL_HOLD = "backfill_hold"  # enough are free, but held for an older, bigger job
    PREEMPTION_IN_PROGRESS = "preemption_in_progress"  # devices are being freed for this job


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamView:
    nominal: int = 0
    borrow_limit: int | None = None
    """Above nominal; None: no limit."""
    lend_limit: int | None = None
    """Of nominal, while it is unused; None: all of it."""
    weight: float = 1.0
    usage: float = 0.0
    """Decayed GPU-seconds of the past."""
    budget_left: float | None = None
    """GPU-seconds neither spent nor committed to running jobs; None: no limit."""

    @property
    def ceiling(self) -> float:
        return float("inf") if self.borrow_limit is None else self.nominal + self.borrow_limit

    @property
    def unlendable(self) -> int:
        return 0 if self.lend_limit is None else max(0, self.nominal - self.lend_limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingLimitView:
    """A budget that jobs draw on in addition to their team's: a project's or a user's."""

    left: float
    """Device-seconds of this pool, neither spent nor committed to running jobs."""
    label: str = ""
    """The owner in the phrase "the budget of …"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJobView:
    """A waiting job. `devices` must be free at once: trainer and minimum number of replicas."""

    id: str
    team: str
    devices: int
    queued_at: datetime
    priority: int = 0
    preemptible: bool = False
    max_runtime_s: float = 0.0
    not_before: datetime | None = None
    replica_devices: int = 0
    most_replicas: int = 0
    """Elastic ones, beyond the minimum."""
    draws_on: tuple[str, ...] = ()
    """Names of spending limits."""
    lacks_sandbox: bool = False
    """Whether it needs a sandbox that the pool's hosts lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderView:
    """A job that holds devices."""

    id: str
    team: str
    devices: int
    """Of its trainer and minimum number of replicas."""
    since: datetime
    priority: int = 0
    preemptible: bool = False
    is_leaving: bool = False
    """Whether it is pausing or stopping: all its devices will be free soon."""
    may_grow: bool = False
    replica_devices: int = 0
    replicas: int = 0
    """Elastic ones that it keeps."""
    replicas_leaving: int = 0
    most_replicas: int = 0
    ends_by: datetime | None = None
    """When its maximum runtime is over."""
    draws_on: tuple[str, ...] = ()

    @property
    def held(self) -> int:
        return self.devices + (self.replicas + self.replicas_leaving) * self.replica_devices

    @property
    def leaving(self) -> int:
        return self.held if self.is_leaving else self.replicas_leaving * self.replica_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A pool. `teams` by id: other teams may use nothing. `claims`: held devices, by id of the waiting job."""

    capacity: int
    teams: Mapping[str, TeamView]
    queued: Sequence[QueuedJobView]
    now: datetime
    is_open: bool = True
    in_maintenance: bool = False
    """No job starts, in any pool."""
    drained: int = 0
    """Devices of the capacity on which nothing may start, because their hosts are drained."""
    holders: Sequence[HolderView] = ()
    claims: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, SpendingLimitView] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    job: str
    borrowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A victim, which is paused and re-enters the line."""

    victim: str
    on_behalf_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """A new number of a job's elastic replicas."""

    job: str
    replicas: int
    borrowed: int = 0
    """Of the devices that it gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result of a decision. Every queued job is either admitted or has one reason."""

    admissions: tuple[Admission, ...]
    reasons: Mapping[str, WaitingReason]
    preemptions: tuple[Preemption, ...] = ()
    grants: tuple[Resize, ...] = ()
    reclaims: tuple[Resize, ...] = ()
    claims: Mapping[str, int] = field(default_factory=dict)
    """All claims after this round."""
    line: tuple[str, ...] = ()
    """The waiting jobs, in the order of evaluation."""
    budgets_of: Mapping[str, str] = field(default_factory=dict)
    """The label of the budget that a job waits for, unless it is its team's."""

    @property
    def admitted(self) -> tuple[str, ...]:
        return tuple(admission.job for admission in self.admissions)
