"""Changes of quotas and budgets, and the release of devices that an engine no longer uses."""

import logging
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Sum

from backend.accounts.models import Team
from backend.api.etags import etag_of, refuse_if_changed
from backend.audit.services import record_action
from backend.errors import Conflict, FieldError
from backend.pools.changes import pool_changed
from backend.pools.models import Budget, Reservation, ReservationRole, ResourcePool, TeamQuota
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)


class QuotaExceedsPool(Conflict):
    """The nominal quotas of the pool's teams would exceed its capacity."""

    code = "quota_exceeds_pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTerms:
    nominal: int
    borrow_limit: int | None
    lend_limit: int | None
    weight: float


def set_quota(
    pool: ResourcePool, team: Team, terms: QuotaTerms, *, if_match: str | None, actor: str, now: datetime
) -> TeamQuota:
    """Applies from the next round; running jobs continue. Raises `PreconditionFailed`, `QuotaExceedsPool`."""
    with transaction.atomic():
        pool = ResourcePool.objects.select_for_update(of=("self",), no_key=True).get(pk=pool.pk)
        refuse_if_changed(if_match, etag_of(pool.version))
        others = TeamQuota.objects.filter(pool=pool).exclude(team=team).aggregate(sum=Sum("nominal"))["sum"] or 0
        if others + terms.nominal > pool.capacity:
            left = pool.capacity - others
            message = (
                f"must be at most {left}: the pool has {pool.capacity} devices and promises {others} to other teams"
            )
            error = FieldError(pointer="/nominal", code="quota_exceeds_pool", message=message)
            raise QuotaExceedsPool(errors=[error])
        quota, is_new = TeamQuota.objects.select_for_update(no_key=True).get_or_create(
            pool=pool, team=team, defaults=_columns(terms)
        )
        before = {} if is_new else _columns(_terms(quota))
        for name, value in _columns(terms).items():
            setattr(quota, name, value)
        quota.save()
        ResourcePool.objects.filter(pk=pool.pk).update(version=pool.version + 1)
        quota.pool.version = pool.version + 1
        pool_changed()(pool.pk, now)
        data = {"pool": pool.pk, "before": before, "after": _columns(terms)}
        record_action(team_id=team.pk, actor=actor, action="quota.changed", target=pool.pk, now=now, data=data)
    return quota


def set_budget(
    team: Team, gpu_seconds: int | None, *, if_match: str | None, actor: str, now: datetime
) -> Budget | None:
    """None removes the limit. Running jobs continue; the new limit applies to the next start."""
    with transaction.atomic():
        Team.objects.select_for_update(no_key=True).get(pk=team.pk)  # the budget may have no row to lock
        budget = Budget.objects.select_for_update(no_key=True).filter(team=team).first()
        refuse_if_changed(if_match, etag_of(budget.version if budget else 0))
        before = budget.gpu_seconds if budget else None
        if gpu_seconds is None:
            Budget.objects.filter(team=team).delete()
            budget = None
        else:
            version = budget.version + 1 if budget else 1
            defaults = {"gpu_seconds": gpu_seconds, "version": version}
            budget, _ = Budget.objects.update_or_create(team=team, defaults=defaults)
        for pool_id in TeamQuota.objects.filter(team=team).order_by("pool_id").values_list("pool_id", flat=True):
            pool_changed()(pool_id, now)
        data = {"before": before, "after": gpu_seconds}
        record_action(team_id=team.pk, actor=actor, action="budget.changed", target=team.pk, now=now, data=data)
    return budget


def release_elastic(job_id: str, *, replicas: int, now: datetime) -> None:
    """Releases the reservations of replicas beyond `replicas`, those already reclaimed first.

    Runs in the caller's transaction, which holds the job's lock. Idempotent.
    """
    live = Reservation.objects.filter(job_id=job_id, released_at__isnull=True)
    elastic = list(live.filter(role=ReservationRole.ELASTIC).select_related("job", "pool"))
    if not elastic:
        return
    spec = JobSpec.accepted(elastic[0].job.spec)
    kept = max(0, replicas - (spec.placement.min_replicas or spec.rollout.replicas))
    elastic.sort(key=lambda one: (one.reclaimed_at is None, -one.slot))
    surplus = [one.pk for one in elastic[: max(0, len(elastic) - kept)]]
    if not surplus:
        return
    Reservation.objects.filter(pk__in=surplus).update(released_at=now)
    pool_changed()(elastic[0].pool_id, now)
    log.info("released job=%s elastic=%d kept=%d", job_id, len(surplus), kept)


def _columns(terms: QuotaTerms) -> dict[str, float | None]:
    return {
        "nominal": terms.nominal,
        "borrow_limit": terms.borrow_limit,
        "lend_limit": terms.lend_limit,
        "weight": terms.weight,
    }


def _terms(quota: TeamQuota) -> QuotaTerms:
    return QuotaTerms(
        nominal=quota.nominal, borrow_limit=quota.borrow_limit, lend_limit=quota.lend_limit, weight=quota.weight
    )
