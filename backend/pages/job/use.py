"""The devices that a job held: time by kind, cost, and each period."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from backend.jobs.models import Job
from backend.pages import curl
from backend.pages.budgets.usage_views import Hours, cost_of, parts_of
from backend.pools.models import ReservationRole
from backend.usage.credits.crediting import credits_of
from backend.usage.pricing.money import amount_of, shown
from backend.usage.pricing.prices import price_at, site_currency
from backend.usage.report import HeldDevices, usage_of_job
from backend.usage.split import Kinds

MOST_STRETCHES: Final = 100
ROLES: Final[Mapping[str, str]] = {
    ReservationRole.TRAINER: "trainer",
    ReservationRole.ROLLOUT: "replicas",
    ReservationRole.ELASTIC: "a further replica",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    held: HeldDevices
    role: str
    hours: Hours


def use_of(job: Job, *, now: datetime) -> dict[str, Any]:
    held, currency = usage_of_job(job, now=now), site_currency()
    total = sum((each.kinds for each in held), Kinds())
    return {
        "total": Hours.of(total),
        "parts": parts_of(total),
        "currency": currency,
        "total_cost": cost_of(total),
        "credited_cost": shown(amount_of(total.cost_credited)) if total.cost_credited else "",
        "prices": [(job.pool.name, shown(3_600 * price_at(job.pool, now)))] if currency else [],
        "stretches": _newest_first(held),
        "num_stretches": len(held),
        "credits": list(credits_of(job)),
        "usage_curl": curl.get(f"/jobs/{job.pk}/usage"),
    }


def _newest_first(held: Sequence[HeldDevices]) -> list[Stretch]:
    return [
        Stretch(held=each, role=ROLES.get(each.role, each.role), hours=Hours.of(each.kinds))
        for each in held[: -MOST_STRETCHES - 1 : -1]
    ]
