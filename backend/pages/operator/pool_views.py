"""Pools, for operators: capacity, quotas, prices, hosts, and the queue.

Invariant: changes go through the services that REST uses, under the version that the form showed.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from backend.accounts.operators.acting import Operator
from backend.accounts.operators.teams import all_teams
from backend.api.etags import etag_of, refuse_if_changed
from backend.clock import database_now
from backend.errors import Invalid, NotFound
from backend.jobs.control.changing import change_job
from backend.jobs.lifecycle import locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.queue.pool_snapshot import holders_of
from backend.pages.operator.frame import (
    act_and_redirect,
    context_of,
    count_of,
    for_operators,
    optional_count_of,
    text_of,
    version_of,
)
from backend.pages.operator.pool_form import fields_named, lines_of, typed_in
from backend.pages.operator.undo_forms import undo_priority, undo_quota
from backend.pages.undoing import Done
from backend.pools.clusters.drains import devices_out, drained_of, hosts_seen
from backend.pools.clusters.probes import describe_problem, is_failing, probe_of
from backend.pools.clusters.settings import change_pool, make_pool, merged, read_settings, settings_of
from backend.pools.models import ResourcePool, TeamQuota
from backend.pools.representations import MOST_DEVICES, MOST_WEIGHT
from backend.pools.selectors import quotas_in, the_pool, the_team, use_by_team
from backend.pools.services import QuotaTerms, set_quota
from backend.usage.pricing.money import exact_text, shown
from backend.usage.pricing.prices import price_at, prices_of, site_currency, tag_of_prices

SHOWN_IN_LINE: Final = 50
SHOWN_HOLDING: Final = 200
PRIORITIES: Final = range(-100, 101)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    pool: ResourcePool
    held: int
    num_waiting: int
    an_hour: str
    """The current price of a device-hour; empty: free."""


@require_safe
@for_operators
def pools(request: HttpRequest, operator: Operator) -> HttpResponse:
    now = database_now()
    return render(
        request,
        "pages/operator/pools.html",
        context_of(
            pools=[_seen(pool, now) for pool in ResourcePool.objects.order_by("name")], currency=site_currency()
        ),
    )


@require_POST
@for_operators
def new_pool(request: HttpRequest, operator: Operator) -> HttpResponse:
    def make() -> str:
        with fields_named():
            pool = make_pool(operator, read_settings(typed_in(request)), now=database_now())
        return f"Pool {pool.name} created. Next, assign quotas: a team without a quota cannot use the pool."

    return act_and_redirect(request, make, "operator_pools")


@require_safe
@for_operators
def pool(request: HttpRequest, operator: Operator, pool_id: str) -> HttpResponse:
    found, now = pool_or_404(pool_id), database_now()
    use, quotas = use_by_team(found), list(quotas_in(found))
    line = Job.objects.filter(pool=found, state=JobState.QUEUED).select_related("team").order_by("queued_at", "pk")
    context = context_of(
        pool=found,
        seen=_seen(found, now),
        version=etag_of(found.version),
        rows=[{"quota": quota, "used": use.get(quota.team_id, 0)} for quota in quotas],
        promised=sum(quota.nominal for quota in quotas),
        others=[each.team for each in all_teams() if each.team.pk not in {quota.team_id for quota in quotas}],
        line=[{"job": job, "version": etag_of(job.version)} for job in line[:SHOWN_IN_LINE]],
        now=now,
        labels=lines_of(found),
        hosts=_hosts(found, now),
        holding=_holding(found),
        **_prices(found, now),
    )
    return render(request, "pages/operator/pool.html", context)


@require_POST
@for_operators
def change(request: HttpRequest, operator: Operator, pool_id: str) -> HttpResponse:
    found = pool_or_404(pool_id)

    def act() -> str:
        given = typed_in(request) | {"is_open": request.POST.get("is_open") == "yes"}
        with fields_named():
            changed = change_pool(
                operator, found, merged(settings_of(found), given), if_match=version_of(request),
                moves_running_jobs=request.POST.get("moves_running_jobs") == "yes", now=database_now(),
            )  # fmt: skip
        return f"{changed.name} has {changed.capacity:,} devices and is {'open' if changed.is_open else 'closed'}."

    return act_and_redirect(request, act, "operator_pool", pool_id)


@require_POST
@for_operators
def quota(request: HttpRequest, operator: Operator, pool_id: str) -> HttpResponse:
    pool = pool_or_404(pool_id)

    def act() -> Done:
        team = the_team(text_of(request, "team"))
        before = TeamQuota.objects.filter(pool=pool, team=team).first()
        terms = QuotaTerms(
            nominal=count_of(request, "nominal", "Quota"),
            borrow_limit=optional_count_of(request, "borrow_limit", "May borrow"),
            lend_limit=optional_count_of(request, "lend_limit", "Lends"),
            weight=_weight(text_of(request, "weight")),
        )
        if max(terms.nominal, terms.borrow_limit or 0, terms.lend_limit or 0) > MOST_DEVICES:
            raise Invalid(f"A quota and its limits are at most {MOST_DEVICES:,} devices.")
        quota = set_quota(pool, team, terms, if_match=version_of(request), actor=operator.name, now=database_now())
        undo = undo_quota(quota, before) if before else None
        return Done(f"The quota of {team.name} in {pool.name} is {terms.nominal:,}.", undo)

    return act_and_redirect(request, act, "operator_pool", pool_id)


@require_POST
@for_operators
def priority(request: HttpRequest, operator: Operator, pool_id: str, job_id: str) -> HttpResponse:
    """Of a queued job: a team's highest starts first; a job that has waited a day goes ahead of any priority."""
    found = pool_or_404(pool_id)

    def act() -> Done:
        wanted = _priority(text_of(request, "priority"))
        if not Job.objects.filter(pk=job_id, pool=found).exists():
            raise NotFound
        with transaction.atomic():
            job = locked_job(job_id)
            refuse_if_changed(version_of(request), etag_of(job.version))
            changed = change_job(job_id, {"priority": wanted}, actor=operator.name, now=database_now())
        return Done(f"{job.name} waits with priority {wanted}.", undo_priority(found, changed, job.priority))

    return act_and_redirect(request, act, "operator_pool", pool_id)


def pool_or_404(pool_id: str) -> ResourcePool:
    try:
        return the_pool(pool_id)
    except NotFound as refusal:
        raise Http404(refusal.detail) from None


def _seen(pool: ResourcePool, now: datetime) -> PoolRow:
    price = 3_600 * price_at(pool, now)
    return PoolRow(
        pool=pool,
        held=sum(use_by_team(pool).values()),
        num_waiting=Job.objects.filter(pool=pool, state=JobState.QUEUED).count(),
        an_hour=shown(price) if price else "",
    )


def _hosts(pool: ResourcePool, now: datetime) -> dict[str, Any] | None:
    """The hosts at the last probe of Ray, and the drained ones; None: not probed yet."""
    probe = probe_of(pool)
    if probe is None:
        return None
    drained = {each.name: each for each in drained_of(pool)}
    rows = [{"host": host, "drained": drained.get(host.name)} for host in hosts_seen(probe)]
    present = {host.name for host in hosts_seen(probe)}
    gone = [each for name, each in drained.items() if name not in present]
    failing = describe_problem(probe) if is_failing(probe, now) else ""
    return {"probe": probe, "failing": failing, "rows": rows, "gone": gone, "num_out": devices_out(pool)}


def _holding(pool: ResourcePool) -> list[dict[str, Any]]:
    views = sorted(holders_of(pool), key=lambda one: (one.since, one.id))[:SHOWN_HOLDING]
    jobs = Job.objects.select_related("team").in_bulk([one.id for one in views])
    return [{"job": jobs[one.id], "view": one} for one in views if one.id in jobs]


def _prices(pool: ResourcePool, now: datetime) -> dict[str, Any]:
    rows = [
        {
            "price": each,
            "an_hour": shown(3_600 * each.per_device_second),
            "a_second": exact_text(each.per_device_second),
            "has_begun": each.valid_from <= now,
        }
        for each in prices_of(pool)
    ]
    return {"prices": rows, "prices_version": tag_of_prices(pool), "currency": site_currency()}


def _weight(typed: str) -> float:
    try:
        weight = float(typed or "1")
    except ValueError:
        weight = 0.0
    if not 0 < weight <= MOST_WEIGHT:
        raise Invalid(f"Weight: a number above 0 and up to {MOST_WEIGHT:,}; got {typed[:40]}.")
    return weight


def _priority(typed: str) -> int:
    wanted = {str(number): number for number in PRIORITIES}.get(typed)
    if wanted is None:
        raise Invalid(f"Priority: a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}; got {typed[:40]}.")
    return wanted
