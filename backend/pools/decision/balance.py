"""The accounts of one scheduling round: devices held, devices promised, and whether more fit. Pure, updated in place.

Two views are kept, because a preemption frees devices only later:
- now:   `used` counts all held devices, including those of leaving jobs. Starts must fit it;
- soon:  leaving jobs are gone, and every claim is taken. Preemption plans must fit it.

    reserved(s) = max(0, unlendable(s) - used(s))            unused devices that s does not lend
    fits(j, t)  = used(t) + g <= nominal(t) + borrow_limit(t)
                  and used + g <= capacity - sum of reserved(s) over the other teams
                  and (j is preemptible or firm(t) + g <= nominal(t))   nothing firm runs on borrowed devices
    share(t)    = max(0, used(t) - nominal(t)) / all lent devices / weight(t)
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from backend.pools.decision.views import HolderView, PoolView, QueuedJobView, TeamView

NOBODY = TeamView(borrow_limit=0)


@dataclass(slots=True)
class TeamBalance:
    """A team's accounts. `used` and `firm` (not preemptible): devices held now; `pledged`: claims of waiting jobs."""

    view: TeamView
    used: int = 0
    firm: int = 0
    leaving: int = 0
    firm_leaving: int = 0
    pledged: int = 0
    usage: float = 0.0
    budget_left: float | None = None

    @property
    def soon(self) -> int:
        return self.used - self.leaving + self.pledged

    @property
    def quota_use(self) -> int:
        """Devices counted against its quota: both views must fit."""
        return max(self.used, self.soon)

    @property
    def firm_quota_use(self) -> int:
        return max(self.firm, self.firm - self.firm_leaving + self.pledged)

    @property
    def reserved(self) -> int:
        return max(0, self.view.unlendable - self.quota_use)

    @property
    def reserved_soon(self) -> int:
        return max(0, self.view.unlendable - self.soon)


@dataclass(slots=True)
class Balance:
    capacity: int
    """Without drained devices."""
    drained: int
    lent: int
    """All devices that teams lend when they use none; the unit of shares."""
    unlendable: int
    teams: dict[str, TeamBalance]
    used: int = 0
    leaving: int = 0
    pledged: int = 0
    reserved: int = 0
    """Sums over all teams, updated with them."""
    reserved_soon: int = 0
    limits: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, pool: PoolView, claims: Mapping[str, int]) -> "Balance":
        named = {job.team for job in pool.queued} | {holder.team for holder in pool.holders} | set(pool.teams)
        teams = {
            name: TeamBalance(view=view, usage=view.usage, budget_left=view.budget_left)
            for name, view in ((name, pool.teams.get(name, NOBODY)) for name in named)
        }
        unlendable = sum(team.view.unlendable for team in teams.values())
        lent = sum(team.view.nominal for team in teams.values()) - unlendable
        available = pool.capacity - pool.drained
        balance = cls(capacity=available, drained=pool.drained, lent=max(1, lent), unlendable=unlendable, teams=teams)
        balance.limits = {name: limit.left for name, limit in pool.limits.items()}
        for holder in pool.holders:
            balance.hold(holder)
        team_of = {job.id: job.team for job in pool.queued}
        for job, devices in claims.items():
            balance.teams[team_of[job]].pledged += devices
            balance.pledged += devices
        balance.reserved = sum(team.reserved for team in teams.values())
        balance.reserved_soon = sum(team.reserved_soon for team in teams.values())
        return balance

    def copy(self) -> "Balance":
        other = copy(self)
        other.teams = {name: copy(team) for name, team in self.teams.items()}
        return other

    def hold(self, holder: HolderView) -> None:
        """Adds a holder while the accounts are built, before the sums are computed."""
        team = self.teams[holder.team]
        team.used += holder.held
        team.leaving += holder.leaving
        self.used += holder.held
        self.leaving += holder.leaving
        if not holder.preemptible:
            team.firm += holder.devices
            team.firm_leaving += holder.devices if holder.is_leaving else 0

    def exceeded_limit(self, draws_on: Sequence[str], device_seconds: float) -> str | None:
        """The first spending limit with less left than that."""
        return next((name for name in draws_on if self.limits[name] < device_seconds), None)

    def pay(self, draws_on: Sequence[str], device_seconds: float) -> None:
        for name in draws_on:
            self.limits[name] -= device_seconds

    @property
    def free(self) -> int:
        """Devices that are not held and not needed for a claim: leaving devices fulfil claims first."""
        return self.capacity - self.used - max(0, self.pledged - self.leaving)

    def max_devices(self, job: QueuedJobView) -> float:
        """The most that the job's team may ever hold for it, in an otherwise empty pool."""
        view = self.teams[job.team].view
        most = min(view.ceiling, self.capacity + self.drained - (self.unlendable - view.unlendable))
        return most if job.preemptible else min(most, view.nominal)

    def is_within_nominal(self, job: QueuedJobView) -> bool:
        team = self.teams[job.team]
        return team.quota_use + job.devices <= team.view.nominal

    def has_quota(self, job: QueuedJobView) -> bool:
        """Counts claims of the team's other jobs, so that their devices stay reserved."""
        team = self.teams[job.team]
        if team.quota_use + job.devices > team.view.ceiling:
            return False
        return job.preemptible or team.firm_quota_use + job.devices <= team.view.nominal

    def reserved_by_others(self, team: str) -> int:
        return self.reserved - self.teams[team].reserved

    def has_free(self, team: str, devices: int) -> bool:
        return devices <= self.free - self.reserved_by_others(team)

    def fits_soon(self, job: QueuedJobView) -> bool:
        """Whether quota and free devices suffice once leaving jobs are gone."""
        team = self.teams[job.team]
        if team.soon + job.devices > team.view.ceiling:
            return False
        if not job.preemptible and team.firm - team.firm_leaving + team.pledged + job.devices > team.view.nominal:
            return False
        held = self.used - self.leaving + self.pledged
        return held + job.devices <= self.capacity - (self.reserved_soon - team.reserved_soon)

    def share(self, name: str) -> float:
        """The team's borrowed part of all lent devices; 0 within its nominal quota."""
        team = self.teams[name]
        return max(0, team.quota_use - team.view.nominal) / self.lent / team.view.weight

    def share_soon(self, name: str, more: int = 0) -> float:
        team = self.teams[name]
        return max(0, team.soon + more - team.view.nominal) / self.lent / team.view.weight

    def borrows_soon(self, name: str) -> bool:
        team = self.teams[name]
        return team.soon > team.view.nominal

    def take(self, name: str, devices: int, *, firm: bool) -> int:
        """Returns how many of the devices are borrowed."""
        team = self.teams[name]
        before = self._reserved(team)
        team.used += devices
        team.firm += devices if firm else 0
        self.used += devices
        self._update_reserved(team, before)
        return min(devices, max(0, team.used - team.view.nominal))

    def leave(self, name: str, devices: int, *, firm: int = 0) -> None:
        team = self.teams[name]
        before = self._reserved(team)
        team.leaving += devices
        team.firm_leaving += firm
        self.leaving += devices
        self._update_reserved(team, before)

    def pledge(self, name: str, devices: int) -> None:
        team = self.teams[name]
        before = self._reserved(team)
        team.pledged += devices
        self.pledged += devices
        self._update_reserved(team, before)

    def _reserved(self, team: TeamBalance) -> tuple[int, int]:
        return team.reserved, team.reserved_soon

    def _update_reserved(self, team: TeamBalance, before: tuple[int, int]) -> None:
        self.reserved += team.reserved - before[0]
        self.reserved_soon += team.reserved_soon - before[1]
