"""Splits a reservation's time by kind of use, and prices it. Pure: moments in, device-microseconds by kind out.

    reservation  ├──────────────────────────────────────────────────────────────────┤ released
    attempt 1    began ──startup──▶ ready ──useful──▶ checkpoint ──fault──▶ lost
    attempt 2                                            (restart: fault) began ─▶ ready ──useful──▶ draining ─idle─▶

- startup: until an attempt is ready;
- fault: the work of a lost attempt after its newest checkpoint (all of it, including startup, without a checkpoint),
  and the time from the loss until the next attempt is ready. Also the part of the useful time given by the share of
  samples trained into weights that a trainer's death undid (`redone`);
- stale: the part of the useful time given by the share of samples dropped as too old to be trained on;
- idle: from the request to pause or stop, and the time after an attempt that ended well;
- useful: the rest.

Invariants:
- the kinds of a reservation add up to devices x its length, to the microsecond, for any moments;
- only platform faults are credited, and only by the control plane's own clock and records: shares that the engine
  reports move time between kinds, but never make anything cheaper;
- every microsecond costs what a device of the pool costs at that microsecond: nothing before the pool's first price.
  Amounts are whole numbers of 10^-18 of the site's currency, so no sum is ever rounded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from itertools import pairwise

_MICROSECOND = timedelta(microseconds=1)


class Ending(StrEnum):
    WELL = "well"
    """Succeeded, was cancelled or paused, or reached a limit of its own: no wanted work was lost."""
    OWN_FAULT = "own_fault"
    PLATFORM_FAULT = "platform_fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Counts of the samples that ended in an attempt. Integers, so that results do not depend on floats."""

    dropped: int = 0
    redone: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    began_at: datetime
    ready_at: datetime | None = None
    draining_at: datetime | None = None
    """When its pause or stop was requested."""
    kept_at: datetime | None = None
    """When its newest checkpoint was recorded."""
    ended_at: datetime | None = None
    ending: Ending = Ending.WELL
    shares: Shares = Shares()


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceView:
    """A price of a pool, valid until the next one begins."""

    valid_from: datetime
    picos: int
    """Per device-second, in 10^-12 of the currency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """Kinds of use in device-microseconds, and their cost. `credited` is part of `fault`."""

    startup: int = 0
    useful: int = 0
    stale: int = 0
    fault: int = 0
    idle: int = 0
    credited: int = 0
    cost: int = 0
    """Cost of everything held, in 10^-18 of the currency (microseconds times 10^-12), as is `cost_credited`."""
    cost_credited: int = 0

    @property
    def held(self) -> int:
        return self.startup + self.useful + self.stale + self.fault + self.idle

    @property
    def cost_billed(self) -> int:
        return self.cost - self.cost_credited

    def __add__(self, other: "Kinds") -> "Kinds":
        return Kinds(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(Kinds)})


def split_by_day(
    start: datetime,
    end: datetime,
    devices: int,
    attempts: Sequence[AttemptView],
    prices: Sequence[PriceView] = (),
) -> list[tuple[date, Kinds]]:
    """Splits one reservation. `attempts` of its job and `prices` of its pool are in the order in which they began.
    Returns at least one day, even if empty."""
    start, end = start.astimezone(UTC), max(start, end).astimezone(UTC)
    days: dict[date, Kinds] = {start.date(): Kinds()}
    for left, right in pairwise(_boundaries(start, end, attempts)):
        kinds = _kinds_of(left, devices * ((right - left) // _MICROSECOND), attempts)
        cost = devices * _cost_of_one(left, right, prices)
        # A stretch has one kind, so all or none of its cost is credited.
        priced = replace(kinds, cost=cost, cost_credited=cost if kinds.credited else 0)
        days[left.date()] = days.get(left.date(), Kinds()) + priced
    return sorted(days.items())


def _cost_of_one(left: datetime, right: datetime, prices: Sequence[PriceView]) -> int:
    """Cost of one device. Kinds do not depend on prices: only here is a stretch cut at price changes."""
    ends = [max(left, min(right, each.valid_from)) for each in prices] + [right]
    return sum(
        ((end - begin) // _MICROSECOND) * price.picos
        for price, (begin, end) in zip(prices, pairwise(ends), strict=True)
    )


def _boundaries(start: datetime, end: datetime, attempts: Sequence[AttemptView]) -> list[datetime]:
    """Between two neighbours everything has the same kind and day."""
    moments = {start, end, *_midnights(start, end)}
    for attempt in attempts:
        bounds = (attempt.began_at, attempt.ready_at, attempt.draining_at, attempt.kept_at, attempt.ended_at)
        moments.update(moment.astimezone(UTC) for moment in bounds if moment is not None and start < moment < end)
    return sorted(moments)


def _midnights(start: datetime, end: datetime) -> Iterator[datetime]:
    midnight = datetime.combine(start.date() + timedelta(days=1), time(), UTC)
    while midnight < end:
        yield midnight
        midnight += timedelta(days=1)


def _kinds_of(at: datetime, amount: int, attempts: Sequence[AttemptView]) -> Kinds:
    """Kinds of a stretch that begins at `at` and contains no boundary."""
    begun = [attempt for attempt in attempts if attempt.began_at <= at]
    if not begun:
        return Kinds(startup=amount)
    attempt, before = begun[-1], begun[-2] if len(begun) > 1 else None
    if attempt.ended_at is not None and at >= attempt.ended_at:
        return _lost(amount, attempt) if attempt.ending != Ending.WELL else Kinds(idle=amount)
    if attempt.ending != Ending.WELL and at >= (attempt.kept_at or attempt.began_at):
        return _lost(amount, attempt)
    if attempt.draining_at is not None and at >= attempt.draining_at:
        return Kinds(idle=amount)
    if attempt.ready_at is None or at < attempt.ready_at:
        return _lost(amount, before) if before and before.ending != Ending.WELL else Kinds(startup=amount)
    return _shared(amount, attempt.shares)


def _lost(amount: int, attempt: AttemptView) -> Kinds:
    return Kinds(fault=amount, credited=amount if attempt.ending == Ending.PLATFORM_FAULT else 0)


def _shared(amount: int, shares: Shares) -> Kinds:
    if shares.total <= 0:
        return Kinds(useful=amount)
    stale = min(amount, amount * max(0, shares.dropped) // shares.total)
    redone = min(amount - stale, amount * max(0, shares.redone) // shares.total)
    return Kinds(useful=amount - stale - redone, stale=stale, fault=redone)
