"""Prices: exact however use is split, and old bills never change."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from django.db import DatabaseError, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.accounts.models import Team, User
from backend.api.etags import PreconditionFailed
from backend.audit.models import AuditEntry
from backend.jobs.models import Job
from backend.pools.models import Reservation, ResourcePool
from backend.usage.models import PoolPrice, UsageSlice
from backend.usage.pricing.money import amount_of, attos_of, exact_text, picos_of, shown
from backend.usage.pricing.prices import (
    CurrencyFixed,
    PriceBegun,
    PriceTaken,
    PriceTerms,
    price_at,
    set_price,
    tag_of_prices,
    withdraw_price,
)
from backend.usage.report import GroupBy, usage_of, usage_of_job
from backend.usage.services import settle_reservations
from backend.usage.split import AttemptView, Kinds, PriceView, split_by_day
from tests.backend.conftest import Api, MakeJob, MakeKey
from tests.backend.usage.test_usage_split import attempt_views, moments

pytestmark = pytest.mark.django_db

prices = st.lists(
    st.builds(PriceView, valid_from=moments, picos=st.integers(min_value=0, max_value=10**24 - 1)),
    max_size=5,
    unique_by=lambda price: price.valid_from,
).map(lambda drawn: sorted(drawn, key=lambda price: price.valid_from))
attempts = st.lists(attempt_views, max_size=4).map(lambda views: sorted(views, key=lambda view: view.began_at))
lengths = st.integers(min_value=0, max_value=4 * 86_400 * 10**6).map(lambda us: timedelta(microseconds=us))


def by_hand(start: datetime, end: datetime, devices: int, line: list[PriceView]) -> Fraction:
    """In the currency: each price times the time in which it was the newest."""
    total = Fraction(0)
    for index, price in enumerate(line):
        until = line[index + 1].valid_from if index + 1 < len(line) else datetime.max.replace(tzinfo=UTC)
        overlap = max(timedelta(0), min(end, until) - max(start, price.valid_from))
        total += Fraction(price.picos, 10**12) * Fraction(overlap // timedelta(microseconds=1), 10**6)
    return devices * total


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(moments, lengths, st.integers(min_value=1, max_value=4_096), attempts, prices)
def test_each_microsecond_has_the_price_of_its_moment(
    start: datetime, length: timedelta, devices: int, views: list[AttemptView], line: list[PriceView]
) -> None:
    days = split_by_day(start, start + length, devices, views, line)
    cost = sum(kinds.cost for _, kinds in days)
    assert Fraction(cost, 10**18) == by_hand(start, start + length, devices, line)
    assert attos_of(amount_of(cost)) == cost, "the database rounds nothing"
    assert all(0 <= kinds.cost_credited <= kinds.cost for _, kinds in days)
    unpriced = [(day, replace(kinds, cost=0, cost_credited=0)) for day, kinds in days]
    assert unpriced == split_by_day(start, start + length, devices, views), "prices move no time between kinds"


@settings(max_examples=200, deadline=None)
@given(moments, lengths, st.integers(min_value=0, max_value=10**6), attempts, prices)
def test_reservation_cut_in_two_costs_the_same(
    start: datetime, length: timedelta, cut: int, views: list[AttemptView], line: list[PriceView]
) -> None:
    middle, end = start + length * cut / 10**6, start + length
    whole = sum((kinds for _, kinds in split_by_day(start, end, 3, views, line)), Kinds())
    parts = [*split_by_day(start, middle, 3, views, line), *split_by_day(middle, end, 3, views, line)]
    two = sum((kinds for _, kinds in parts), Kinds())
    assert (two.cost, two.cost_credited, two.credited) == (whole.cost, whole.cost_credited, whole.credited)


def test_amounts_are_read_as_money() -> None:
    assert exact_text(Decimal("12.500000")) == "12.5" and exact_text(Decimal(100)) == "100"
    assert shown(Decimal("1234.565")) == "1,234.56" and shown(Decimal("0.000555555556")) == "0.00056"
    assert shown(Decimal(0)) == "0.00"
    with pytest.raises(ArithmeticError):
        picos_of(Decimal("0.0000000000001"))


# ── in the database ───────────────────────────────────────────────────────────────────────────────────────────────────


def priced(pool: ResourcePool, text: str, now: datetime, *, after_s: float = 0) -> PoolPrice:
    begins = now + timedelta(seconds=after_s)
    terms = PriceTerms(per_device_second=Decimal(text), valid_from=begins, currency="EUR")
    return set_price(pool, terms, actor="user:1", now=now)


def held(job: Job, pool: ResourcePool, now: datetime, begin_s: float, end_s: float | None, devices: int) -> Reservation:
    return Reservation.objects.create(
        job=job,
        attempt=1,
        pool=pool,
        team_id=job.team_id,
        role="trainer",
        devices=devices,
        created_at=now + timedelta(seconds=begin_s),
        released_at=None if end_s is None else now + timedelta(seconds=end_s),
    )


def costs(team: Team, group_by: GroupBy, now: datetime) -> dict[str, int]:
    groups = usage_of(team, group_by, first=date(2025, 12, 1), last=date(2026, 2, 1), now=now)
    return {group.group: group.kinds.cost_billed for group in groups}


def test_every_grouping_sums_to_the_slices_cost(
    make_job: MakeJob, pool: ResourcePool, team: Team, bob: User, now: datetime
) -> None:
    jobs = [make_job(), make_job(user=bob), make_job()]
    priced(pool, "0.000555555556", now, after_s=1_000)
    priced(pool, "0.123456789012", now, after_s=70_000)
    for index, job in enumerate(jobs):
        held(job, pool, now, 900 + index, 90_000.000_001 + index, devices=1 + index)
    before = {group_by: costs(team, group_by, now + timedelta(days=3)) for group_by in GroupBy}
    assert settle_reservations() == 3
    slices = sum(row.cost - row.cost_credited for row in UsageSlice.objects.all())
    by_reservation = sum(row.kinds.cost_billed for job in jobs for row in usage_of_job(job, now=now))
    assert attos_of(Decimal(slices)) == by_reservation > 0
    for group_by in GroupBy:
        assert sum(before[group_by].values()) == by_reservation, group_by
        assert costs(team, group_by, now) == before[group_by], "settling changes no figure"
    assert len(before[GroupBy.USER]) == 2 and len(before[GroupBy.DAY]) == 2


def test_new_price_changes_no_earlier_bill(job: Job, pool: ResourcePool, team: Team, now: datetime) -> None:
    held(job, pool, now, 0, 100, devices=2)
    settle_reservations()
    priced(pool, "1", now + timedelta(seconds=200))
    running = held(job, pool, now, 150, None, devices=2)
    assert costs(team, GroupBy.JOB, now + timedelta(seconds=260)) == {job.pk: 120 * 10**18}
    priced(pool, "5", now + timedelta(seconds=300))
    assert costs(team, GroupBy.JOB, now + timedelta(seconds=310)) == {job.pk: (200 + 100) * 10**18}
    Reservation.objects.filter(pk=running.pk).update(released_at=now + timedelta(seconds=310))
    settle_reservations()
    priced(pool, "9", now + timedelta(seconds=400))
    assert costs(team, GroupBy.JOB, now + timedelta(days=9)) == {job.pk: 300 * 10**18}


def test_price_begins_now_or_later_and_never_changes(pool: ResourcePool, now: datetime) -> None:
    for wrong in ("-1", "0.0000000000001", "1000000000000", "NaN"):
        with pytest.raises(ValueError, match="lists every invalid field"):
            priced(pool, wrong, now)
    with pytest.raises(ValueError, match="lists every invalid field") as refused:
        priced(pool, "1", now, after_s=-1)
    assert [error.pointer for error in refused.value.errors] == ["/valid_from"]  # type: ignore[attr-defined]
    price = priced(pool, "1", now)
    with pytest.raises(PriceTaken):
        priced(pool, "2", now)
    for change in ({"per_device_second": 2}, {"valid_from": now + timedelta(days=1)}):
        with pytest.raises(DatabaseError, match="never changes"), transaction.atomic():
            PoolPrice.objects.filter(pk=price.pk).update(**change)
    with pytest.raises(DatabaseError, match="never changes"), transaction.atomic():
        price.delete()
    with pytest.raises(PriceBegun):
        withdraw_price(pool, price.pk, actor="user:1", now=now)


def test_future_price_is_withdrawn_until_a_minute_before(pool: ResourcePool) -> None:
    now = datetime.now(UTC)
    soon, later = priced(pool, "1", now, after_s=30), priced(pool, "2", now, after_s=3_600)
    with pytest.raises(PriceBegun):
        withdraw_price(pool, soon.pk, actor="user:1", now=now)
    withdraw_price(pool, later.pk, actor="user:1", now=now)
    assert list(PoolPrice.objects.values_list("pk", flat=True)) == [soon.pk]
    actions = AuditEntry.objects.filter(target=pool.pk).order_by("seq").values_list("action", flat=True)
    assert list(actions) == ["price.set", "price.set", "price.withdrawn"]


def test_currency_is_set_once(pool: ResourcePool, now: datetime) -> None:
    with pytest.raises(ValueError, match="lists every invalid field"):
        set_price(pool, PriceTerms(per_device_second=Decimal(1), valid_from=None), actor="user:1", now=now)
    for wrong in ("", "EU", "eur", "EURO"):
        with pytest.raises(ValueError, match="lists every invalid field"):
            terms = PriceTerms(per_device_second=Decimal(1), valid_from=None, currency=wrong)
            set_price(pool, terms, actor="user:1", now=now)
    priced(pool, "1", now)
    with pytest.raises(CurrencyFixed, match="is EUR"):
        terms = PriceTerms(per_device_second=Decimal(1), valid_from=None, currency="USD")
        set_price(pool, terms, actor="user:1", now=now + timedelta(seconds=1))


def test_second_of_two_concurrent_operators_is_refused(pool: ResourcePool, now: datetime) -> None:
    seen = tag_of_prices(pool)
    terms = PriceTerms(per_device_second=Decimal(1), valid_from=None, currency="EUR")
    set_price(pool, terms, if_match=seen, actor="user:1", now=now)
    with pytest.raises(PreconditionFailed):
        set_price(pool, terms, if_match=seen, actor="user:2", now=now + timedelta(seconds=1))
    assert price_at(pool, now) == 1 and price_at(pool, now - timedelta(seconds=1)) == 0


def test_settled_slice_never_changes(job: Job, pool: ResourcePool, now: datetime) -> None:
    held(job, pool, now, 0, 10, devices=1)
    settle_reservations()
    with pytest.raises(DatabaseError, match="settled never changes"), transaction.atomic():
        UsageSlice.objects.update(cost=7)


def test_api_returns_exact_costs_and_operators_set_prices(
    job: Job, pool: ResourcePool, alice: User, make_key: MakeKey
) -> None:
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    operator = Api(make_key(alice, scopes=("quota:write", "usage:read")))
    assert operator.get("/usage").json()["total_cost"] is None
    body = {"per_device_second": "0.000555555556", "currency": "EUR"}
    created = operator.post(f"/pools/{pool.pk}/prices", body)
    assert created.status_code == 201 and created.json()["per_device_second"] == "0.000555555556"
    refused = operator.post(f"/pools/{pool.pk}/prices", body | {"valid_from": "2020-01-01T00:00:00Z"})
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/valid_from"
    later = operator.post(f"/pools/{pool.pk}/prices", body | {"valid_from": "2030-01-01T00:00:00Z"})
    assert later.status_code == 201
    assert operator.request("DELETE", f"/pools/{pool.pk}/prices/{later.json()['id']}").status_code == 204
    begin = PoolPrice.objects.get().valid_from
    held(job, pool, begin, 0, 3_600, devices=2)
    settle_reservations()
    query = {"from": begin.date().isoformat(), "to": (begin + timedelta(hours=1)).date().isoformat()}
    usage = operator.get("/usage", **query).json()
    assert usage["total_cost"] == {"currency": "EUR", "held": "4.0000000032", "credited": "0", "billed": "4.0000000032"}
    table = operator.get("/usage", format="csv", **query).content.decode()
    assert table.splitlines()[0].endswith("held_EUR,credited_EUR,billed_EUR")
    assert table.splitlines()[1].endswith("4.0000000032,0,4.0000000032")
