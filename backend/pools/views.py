"""The input of a decision, and its answer. Pure data.

teams, holders, claims, the line ──PoolView──▶ decide ──Verdict──▶ starts, reasons, preemptions, growth, claims
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class WaitingReason(StrEnum):
    """The reasons to wait, a closed list: a page and a program can know them all."""

    NOT_EVALUATED_YET = "not_evaluated_yet"  # no round has looked at the job; `decide` never gives it
    EXCEEDS_MAX = "exceeds_max"  # more than the pool has, or than the team may ever use there
    POOL_CLOSED = "pool_closed"  # nothing starts in this pool for now
    MAINTENANCE = "maintenance"  # nothing starts on this site until an announced maintenance is over
    NO_SANDBOX = "no_sandbox"  # its environment runs untrusted code, which no host of the pool can confine
    BACKOFF_UNTIL = "backoff_until"  # its last start failed; it may try again later
    BUDGET = "budget"  # its longest run would cost more than is left this month, of the team's or of another budget
    TEAM_CEILING = "team_ceiling"  # the team's quota, and what it may borrow, is in use
    BEHIND_PRIORITY = "behind_priority"  # what its team may use is being kept for a job before it in the team's line
    WAITING_LENDER_FENCE = "waiting_lender_fence"  # enough devices are free, but other teams do not lend them
    POOL_FULL = "pool_full"  # not enough devices are free
    BACKFILL_HOLD = "backfill_hold"  # enough are free, but they are being kept for an older, bigger job
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
    """GPU-seconds of the past, the older the less."""
    budget_left: float | None = None
    """GPU-seconds that are neither spent nor promised to what runs; None: no limit."""

    @property
    def ceiling(self) -> float:
        return float("inf") if self.borrow_limit is None else self.nominal + self.borrow_limit

    @property
    def unlendable(self) -> int:
        return 0 if self.lend_limit is None else max(0, self.nominal - self.lend_limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class PurseView:
    """A budget that jobs draw on beside their team's: a project's or a person's."""

    left: float
    """Device-seconds of this pool that are neither spent nor promised to what runs."""
    label: str = ""
    """Whose it is, in a sentence: the budget of …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJobView:
    """A waiting job. `devices` must be free at once: trainer and least number of replicas."""

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
    """Elastic ones, beyond the least number."""
    draws_on: tuple[str, ...] = ()
    """The names of purses."""
    lacks_sandbox: bool = False
    """It needs one, and the pool's hosts have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderView:
    """A job that holds devices."""

    id: str
    team: str
    devices: int
    """Of its trainer and least number of replicas."""
    since: datetime
    priority: int = 0
    preemptible: bool = False
    is_leaving: bool = False
    """It is pausing or stopping: all that it holds will be free soon."""
    may_grow: bool = False
    replica_devices: int = 0
    replicas: int = 0
    """Elastic ones that it keeps."""
    replicas_leaving: int = 0
    most_replicas: int = 0
    ends_by: datetime | None = None
    """The moment at which its longest run is over."""
    draws_on: tuple[str, ...] = ()

    @property
    def held(self) -> int:
        return self.devices + (self.replicas + self.replicas_leaving) * self.replica_devices

    @property
    def leaving(self) -> int:
        return self.held if self.is_leaving else self.replicas_leaving * self.replica_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A pool. `teams` by id: whoever is not in it may use nothing. `claims`: devices kept, by id of the waiting job."""

    capacity: int
    teams: Mapping[str, TeamView]
    queued: Sequence[QueuedJobView]
    now: datetime
    is_open: bool = True
    in_maintenance: bool = False
    """Nothing starts, in no pool."""
    drained: int = 0
    """Of the capacity, devices that nothing may start on: their hosts are being taken out."""
    holders: Sequence[HolderView] = ()
    claims: Mapping[str, int] = field(default_factory=dict)
    purses: Mapping[str, PurseView] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    job: str
    borrowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A victim, which is paused and goes back into the line."""

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
class Verdict:
    """The answer of a decision. Every queued job is either admitted or has one reason."""

    admissions: tuple[Admission, ...]
    reasons: Mapping[str, WaitingReason]
    preemptions: tuple[Preemption, ...] = ()
    grants: tuple[Resize, ...] = ()
    reclaims: tuple[Resize, ...] = ()
    claims: Mapping[str, int] = field(default_factory=dict)
    """All that stand after this round."""
    line: tuple[str, ...] = ()
    """The waiting jobs, in the order in which they were looked at."""
    budgets_of: Mapping[str, str] = field(default_factory=dict)
    """Whose budget is in the way of a job that waits for one, where it is not its team's."""

    @property
    def admitted(self) -> tuple[str, ...]:
        return tuple(admission.job for admission in self.admissions)
