"""Settling: once a reservation has ended, its use and cost are stored for good.

Invariants:
- a reservation is settled once, as a whole, after every attempt that used it has ended;
- the time of settling changes no figure: until then reports compute the same numbers on the fly.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from backend.jobs.models import JobAttempt
from backend.pools.models import Reservation
from backend.usage.models import UsageSlice
from backend.usage.pricing.money import amount_of, attos_of
from backend.usage.pricing.prices import price_lines
from backend.usage.split import Kinds, PriceView, split_by_day
from backend.usage.timelines import Timeline, timelines_of

SETTLED_AT_ONCE = 500
"""Keeps a background task at a second or two; the next tick continues."""
STORED: Final = {
    "startup": "startup_us",
    "useful": "useful_us",
    "stale": "stale_us",
    "fault": "fault_us",
    "idle": "idle_us",
    "credited": "credited_us",
    "cost": "cost",
    "cost_credited": "cost_credited",
}
"""The column of each field of `Kinds`."""
_AMOUNTS: Final = frozenset({"cost", "cost_credited"})


def unsettled(reservations: QuerySet[Reservation] | None = None) -> QuerySet[Reservation]:
    rows = Reservation.objects.all() if reservations is None else reservations
    return rows.filter(~Exists(UsageSlice.objects.filter(reservation=OuterRef("pk"))))


def settle_reservations(*, limit: int = SETTLED_AT_ONCE) -> int:
    """Returns the number settled. Concurrent calls take different reservations."""
    running = JobAttempt.objects.filter(
        job=OuterRef("job"), ended_at__isnull=True, created_at__lt=OuterRef("released_at")
    )
    with transaction.atomic():
        due = unsettled().filter(~Exists(running), released_at__isnull=False).order_by("pk")
        rows = list(due.select_for_update(of=("self",), no_key=True, skip_locked=True)[:limit])
        UsageSlice.objects.bulk_create(slices_of(rows, now=None))
    return len(rows)


def slices_of(reservations: Sequence[Reservation], *, now: datetime | None) -> list[UsageSlice]:
    """Unsaved slices. A reservation that is still held counts up to `now`."""
    timelines = timelines_of(row.job_id for row in reservations)
    prices = price_lines({row.pool_id for row in reservations})
    return [
        piece
        for row in reservations
        for piece in _slices(row, timelines[row.job_id], prices.get(row.pool_id, ()), row.released_at or now)
    ]


def _slices(
    row: Reservation, line: Timeline, prices: Sequence[PriceView], end: datetime | None
) -> Iterable[UsageSlice]:
    assert end is not None, "a held reservation needs `now`"
    for day, kinds in split_by_day(row.created_at, end, row.devices, line.attempts, prices):
        yield UsageSlice(
            reservation=row,
            day=day,
            team_id=row.team_id,
            project_id=line.job.project_id,
            user_id=line.job.created_by_id,
            job_id=row.job_id,
            key=line.submitted_by,
            **columns(kinds),
        )


def columns(kinds: Kinds) -> dict[str, int | Decimal]:
    values = {name: getattr(kinds, name) for name in STORED} | {"held": kinds.held}
    stored = STORED | {"held": "held_us"}
    return {stored[name]: amount_of(value) if name in _AMOUNTS else value for name, value in values.items()}


def kinds_of(row: UsageSlice) -> Kinds:
    return Kinds(**{name: stored_number(name, getattr(row, stored)) for name, stored in STORED.items()})


def stored_number(name: str, value: Decimal | int) -> int:
    """A field of `Kinds` from its column, or from a sum over it. Exact."""
    return attos_of(Decimal(value)) if name in _AMOUNTS else int(value)
