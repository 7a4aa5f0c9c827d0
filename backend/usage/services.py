"""Settling: once a reservation has ended, its use and cost are stored for good.

Invariants:
- a reservation is settled once, as a whole, after every attempt that used it has ended;
- the time of settling changes no figure: until then reports compute the same numbers on the fly;
- the part of each settled slice that an operator's credit made is stored with it, so that it can be taken back.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet

from backend.jobs.models import JobAttempt
from backend.pools.models import Reservation
from backend.usage.models import AttemptCredit, CreditedSlice, UsageSlice
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
        UsageSlice.objects.bulk_create(slices_of(rows, now=None, credited=()))
        jobs = {row.job_id for row in rows}
        credits = AttemptCredit.objects.filter(attempt__job_id__in=jobs, taken_back_at__isnull=True)
        for credit in credits.select_related("attempt"):
            book_credit(credit, [row for row in rows if row.job_id == credit.attempt.job_id])
    return len(rows)


def book_credit(credit: AttemptCredit, settled: Sequence[Reservation]) -> None:
    """Adds an operator's credit to the slices of these reservations, which are settled and locked."""
    plain, credited = (slices_of(settled, now=None, credited=each) for each in ((), (credit.attempt_id,)))
    stored = {(row.reservation_id, row.day): row for row in UsageSlice.objects.filter(reservation__in=settled)}
    for before, after in zip(plain, credited, strict=True):
        row = stored[after.reservation_id, after.day]
        us, cost = after.credited_us - before.credited_us, attos_of(after.cost_credited - before.cost_credited)
        # A checkpoint found corrupt since the settling makes more fault time than was settled.
        part = min(us, row.fault_us - row.credited_us)
        if part > 0:
            amount = amount_of(cost * part // us)
            _add_credit(CreditedSlice(credit=credit, slice=row, credited_us=part, cost_credited=amount))


def _add_credit(part: CreditedSlice) -> None:
    part.save(force_insert=True)
    _change_credited(part, 1)


def unbook_credit(credit: AttemptCredit) -> None:
    """The exact reverse of `book_credit`, also if the attempt's use has changed since."""
    for part in CreditedSlice.objects.filter(credit=credit):
        _change_credited(part, -1)


def _change_credited(part: CreditedSlice, sign: int) -> None:
    UsageSlice.objects.filter(pk=part.slice_id).update(
        credited_us=F("credited_us") + sign * part.credited_us,
        cost_credited=F("cost_credited") + sign * part.cost_credited,
    )


def slices_of(
    reservations: Sequence[Reservation], *, now: datetime | None, credited: Collection[int] | None = None
) -> list[UsageSlice]:
    """Unsaved slices. A reservation that is still held counts up to `now`. `credited`: as in `timelines_of`."""
    timelines = timelines_of((row.job_id for row in reservations), credited=credited)
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
