"""The cost of a job before it is submitted, at the pool's current price.

Invariant: nothing is estimated. The hourly cost is given for all devices that the job may get and for those it starts
with; the maximum is for all devices during its longest possible run.

Jobs know no prices: usage provides this port.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from backend.pools.models import ResourcePool
from backend.ports import Port
from engine.spec.job import JobSpec

PriceNow = Callable[[ResourcePool, datetime], tuple[Decimal, str]]
"""Returns the price of a device-second and its currency; 0 if free."""
price_now: Port[PriceNow] = Port("the price of a pool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    currency: str
    an_hour: Decimal
    an_hour_at_least: Decimal
    at_most: Decimal


def cost_of(spec: JobSpec, pool: ResourcePool, *, now: datetime) -> Cost | None:
    """None if the pool is free."""
    price, currency = price_now()(pool, now)
    if not price:
        return None
    return Cost(
        currency=currency,
        an_hour=3_600 * price * spec.num_devices,
        an_hour_at_least=3_600 * price * spec.min_devices,
        at_most=price * spec.num_devices * Decimal(str(spec.max_runtime_s)),
    )
