"""A team's quota and the queue: for each pool its running and waiting jobs, and why a job of the team waits.

Invariants:
- of other teams' jobs the page shows what `queue_view_of` returns: the number of devices, and since when;
- the counterfactuals are the scheduler's own decision on changed inputs, for one job at a time: the one in the URL,
  or the team's first in line while the queue is short.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.accounts.models import Team
from backend.clock import database_now
from backend.jobs.models import Job, JobState
from backend.jobs.queue.explain import WaitExplained, explain_wait
from backend.jobs.queue.team_view import QueueView, queue_view_of
from backend.pages import curl
from backend.pages.budgets.asking import question_shown
from backend.pages.team.team_views import acting_in, frame_of
from backend.pools.budgets import BudgetState, budget_states
from backend.pools.clusters.probes import describe_problem, is_failing, probe_of
from backend.pools.models import ResourcePool, TeamQuota
from backend.pools.selectors import pools_of, quotas_of

SHOWN_AT_FIRST: Final = 50
MOST_SHOWN: Final = 1_000
MOST_HOLDERS: Final = 200
EXPLAINED_UNASKED: Final = 300
"""Each decision on a longer queue takes tens of milliseconds, so the wait is explained only on request."""
LATE_AFTER: Final = timedelta(seconds=60)
_HOUR: Final = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A segment of the bar of a pool's devices; `x` and `width` in per cent."""

    kind: str
    label: str
    devices: int
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetShown:
    """A team's GPU-hours of this month."""

    limit: float | None
    spent: float
    committed: float
    left: float | None

    @classmethod
    def of(cls, state: BudgetState) -> "BudgetShown":
        return cls(
            limit=None if state.limit is None else state.limit / _HOUR,
            spent=state.spent / _HOUR,
            committed=state.committed / _HOUR,
            left=None if state.left is None else max(0.0, state.left) / _HOUR,
        )

    @property
    def spent_share(self) -> float:
        """Per cent of the limit, like `committed_share`."""
        return min(100.0, 100 * self.spent / self.limit) if self.limit else 0.0

    @property
    def committed_share(self) -> float:
        return min(100.0 - self.spent_share, 100 * self.committed / self.limit) if self.limit else 0.0


@require_safe
@never_cache
@login_required
def queue(request: HttpRequest) -> HttpResponse:
    """With ?part, only the live part: an open page fetches it when notified of a change."""
    acting, now = acting_in(request), database_now()
    pools = list(pools_of(acting.team))
    context: dict[str, Any] = frame_of(acting) | {"pools": pools, "now": now, "curl": curl.get("/quota")}
    if pools:
        pool = _choose_pool(pools, request.GET.get("pool", ""))
        context |= _of_pool(request, acting.team, pool, now) | question_shown(acting, pool, now=now)
    is_part = "part" in request.GET and pools
    return render(request, "pages/team/_queue.html" if is_part else "pages/team/queue.html", context)


def _choose_pool(pools: list[ResourcePool], wanted: str) -> ResourcePool:
    found = next((pool for pool in pools if pool.pk == wanted), None)
    if found is None and wanted:
        raise Http404("This pool does not exist, or your team has no quota in it.")
    return found or pools[0]


def _of_pool(request: HttpRequest, team: Team, pool: ResourcePool, now: datetime) -> dict[str, Any]:
    mine, wants_all = request.GET.get("line") == "ours", request.GET.get("line") == "all"
    limit = MOST_SHOWN if wants_all else SHOWN_AT_FIRST
    seen = queue_view_of(team, pool, only_mine=mine, limit=limit, now=now)
    quota, probe = quotas_of(team).get(pool=pool), probe_of(pool)
    asked = _find_asked_job(team, seen, request.GET.get("job", ""))
    return {
        "pool": pool,
        "quota": quota,
        "borrowed": max(0, seen.used - quota.nominal),
        "seen": seen,
        "holding": seen.holding[:MOST_HOLDERS],
        "bar": list(_bar(pool, quota, seen)),
        "line": "ours" if mine else "all" if wants_all else "",
        "asked": asked,
        "wait": _explained(asked, now=now),
        "failing": probe if is_failing(probe, now) else None,
        "failing_details": describe_problem(probe) if probe is not None and request.user.is_staff else "",
        "is_late": seen.evaluated_at is not None and now - seen.evaluated_at > LATE_AFTER,
        "budget": BudgetShown.of(budget_states([team.pk], now=now)[team.pk]),
        "between_pulls_ms": 3_000 if seen.num_waiting <= EXPLAINED_UNASKED else 15_000,
        "settings_curl": curl.get(f"/pools/{pool.pk}/settings"),
        "queue_curl": curl.get(f"/pools/{pool.pk}/queue"),
        "explain_curl": curl.get(f"/jobs/{asked.pk}/explain") if asked else "",
        "budget_curl": curl.get("/budgets"),
    }


def _find_asked_job(team: Team, seen: QueueView, wanted: str) -> Job | None:
    if wanted:
        return Job.objects.filter(team=team, state=JobState.QUEUED, pk=wanted[:32]).select_related("pool").first()
    if seen.num_waiting > EXPLAINED_UNASKED:
        return None
    return next((one.job for one in seen.waiting if one.job is not None), None)


def _explained(job: Job | None, *, now: datetime) -> WaitExplained | None:
    return explain_wait(job, now=now) if job is not None and job.state == JobState.QUEUED else None


def _bar(pool: ResourcePool, quota: TeamQuota, seen: QueueView) -> Iterator[Stretch]:
    own = min(seen.used, quota.nominal)
    unused = max(0, pool.capacity - seen.used - seen.used_by_others - seen.free)
    parts = (
        ("own", "yours", own),
        ("borrowed", "borrowed by you", seen.used - own),
        ("others", "other teams", seen.used_by_others),
        ("free", "free", seen.free),
        ("out", "draining", min(seen.drained, unused)),
    )
    whole, x = max(1, pool.capacity, sum(devices for _, _, devices in parts)), 0.0
    for kind, label, devices in parts:
        width = 100 * devices / whole
        if devices:
            yield Stretch(kind=kind, label=label, devices=devices, x=x, width=width)
        x += width
