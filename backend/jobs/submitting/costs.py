"""The cost of a job before it is submitted, by the pool's price of now.

Invariant: nothing is guessed. An hour is told of all devices that the job may get and of those that it starts with; the
most is that of all of them for its longest run. How long it will really take nobody knows yet.

Jobs know no prices: usage fills this port.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from backend.pools.models import ResourcePool
from backend.ports import Port
from engine.spec.job import JobSpec

PriceNow = Callable[[ResourcePool, datetime], tuple[Decimal, str]]
"""Of a device-second, and its currency; 0: free."""
price_now: Port[PriceNow] = Port("the price of a pool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    currency: str
    an_hour: Decimal
    an_hour_at_least: Decimal
    at_most: Decimal


def cost_of(spec: JobSpec, pool: ResourcePool, *, now: datetime) -> Cost | None:
    """None: the pool is free."""
    price, currency = price_now()(pool, now)
    if not price:
        return None
    return Cost(
        currency=currency,
        an_hour=3_600 * price * spec.num_devices,
        an_hour_at_least=3_600 * price * spec.min_devices,
        at_most=price * spec.num_devices * Decimal(str(spec.max_runtime_s)),
    )
