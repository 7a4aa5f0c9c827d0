"""Prices of pools: made, withdrawn, looked up.

Invariants:
- a price begins now or later, never earlier, and is never changed: no bill of the past depends on what is set today;
- one that has not begun may be withdrawn, until shortly before it begins;
- whoever sets one says which they saw: of two operators at once the second is told.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from backend.accounts.signing_in.chains import site_chain
from backend.api.etags import etag_of, refuse_if_changed
from backend.audit.services import record_action
from backend.errors import Conflict, FieldError, Invalid, NotFound
from backend.pools.models import ResourcePool
from backend.usage.models import PoolPrice, SiteCurrency
from backend.usage.pricing.money import PRICE_DIGITS, PRICE_PLACES, exact_text, picos_of
from backend.usage.split import PriceView

CURRENCY: Final = r"[A-Z]{3}"
FINAL_BEFORE: Final = timedelta(minutes=1)
"""A price that begins within that time stays: what runs when it begins may be reckoned by it already."""
MOST_AHEAD: Final = timedelta(days=3_660)
_MOST: Final = Decimal(10) ** (PRICE_DIGITS - PRICE_PLACES)


class PriceTaken(Conflict):
    """This pool has a price that begins at that very moment: withdraw it first, or choose another moment."""

    code = "price_taken"


class PriceBegun(Conflict):
    """A price that has begun, or begins within a minute, stays as it is: set the next one instead."""

    code = "price_begun"


class CurrencyFixed(Conflict):
    """The site's currency was set with its first price and does not change."""

    code = "currency_fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTerms:
    per_device_second: Decimal
    valid_from: datetime | None
    """None: from now on."""
    currency: str | None = None
    """Needed with a site's first price."""


def set_price(
    pool: ResourcePool, terms: PriceTerms, *, if_match: str | None = None, actor: str, now: datetime
) -> PoolPrice:
    """Raises `PreconditionFailed`, `PriceTaken`, `CurrencyFixed`, `Invalid`."""
    valid_from = now if terms.valid_from is None else terms.valid_from
    _refuse_nonsense(terms.per_device_second, valid_from, now)
    with transaction.atomic():
        ResourcePool.objects.select_for_update(of=("self",), no_key=True).get(pk=pool.pk)
        refuse_if_changed(if_match, tag_of_prices(pool))
        currency = _settle_currency(terms.currency)
        try:
            with transaction.atomic():
                price = PoolPrice.objects.create(
                    pool=pool,
                    per_device_second=terms.per_device_second,
                    valid_from=valid_from,
                    created_at=now,
                    created_by=actor,
                )
        except IntegrityError:
            raise PriceTaken from None
        _record("price.set", price, currency, actor, now)
    return price


def withdraw_price(
    pool: ResourcePool, price_id: int, *, if_match: str | None = None, actor: str, now: datetime
) -> None:
    with transaction.atomic():
        ResourcePool.objects.select_for_update(of=("self",), no_key=True).get(pk=pool.pk)
        refuse_if_changed(if_match, tag_of_prices(pool))
        price = PoolPrice.objects.filter(pool=pool, pk=price_id).first()
        if price is None:
            raise NotFound("This pool has no such price.")
        if price.valid_from <= now + FINAL_BEFORE:
            raise PriceBegun
        _record("price.withdrawn", price, site_currency(), actor, now)
        price.delete()


def prices_of(pool: ResourcePool) -> QuerySet[PoolPrice]:
    """The newest, or farthest ahead, first."""
    return PoolPrice.objects.filter(pool=pool).order_by("-valid_from")


def price_at(pool: ResourcePool, moment: datetime) -> Decimal:
    """Of a device-second; 0 before the first."""
    found = prices_of(pool).filter(valid_from__lte=moment).values_list("per_device_second", flat=True).first()
    return found if found is not None else Decimal(0)


def price_and_currency(pool: ResourcePool, moment: datetime) -> tuple[Decimal, str]:
    return price_at(pool, moment), site_currency()


def price_lines(pools: Collection[str]) -> Mapping[str, Sequence[PriceView]]:
    """Of each pool that has any, the oldest first."""
    found: dict[str, list[PriceView]] = defaultdict(list)
    rows = PoolPrice.objects.filter(pool_id__in=pools).order_by("valid_from")
    for pool, valid_from, price in rows.values_list("pool_id", "valid_from", "per_device_second"):
        found[pool].append(PriceView(valid_from=valid_from, picos=picos_of(price)))
    return found


def site_currency() -> str:
    """Empty: nothing has ever had a price here."""
    return SiteCurrency.objects.values_list("code", flat=True).first() or ""


def tag_of_prices(pool: ResourcePool) -> str:
    """Prices come and go and do not change, so the newest and their number say which there are."""
    ids = list(PoolPrice.objects.filter(pool=pool).order_by("-pk").values_list("pk", flat=True))
    return etag_of(len(ids), ids[0] if ids else 0)


def _refuse_nonsense(price: Decimal, valid_from: datetime, now: datetime) -> None:
    errors = []
    if not price.is_finite() or price < 0 or price >= _MOST or price != round(price, PRICE_PLACES):
        message = f"0 or more, below {_MOST:,f}, with at most {PRICE_PLACES} decimals; got {price}"
        errors.append(FieldError(pointer="/per_device_second", code="price", message=message))
    if not now <= valid_from <= now + MOST_AHEAD:
        message = (
            f"a price begins now or later, and within {MOST_AHEAD.days // 366} years: what was used until now keeps"
            f" its price; got {valid_from.isoformat()}, now is {now.isoformat()}"
        )
        errors.append(FieldError(pointer="/valid_from", code="past", message=message))
    if errors:
        raise Invalid(errors=errors)


def _settle_currency(wanted: str | None) -> str:
    """The first price names it; later ones may repeat it."""
    known = site_currency()
    if wanted is None:
        if known:
            return known
        message = "the first price of a site says its currency, three letters such as EUR; it does not change later"
        raise Invalid(errors=[FieldError(pointer="/currency", code="missing", message=message)])
    if not re.fullmatch(CURRENCY, wanted):
        message = f"three capital letters (ISO 4217) such as EUR; got {wanted[:40]}"
        raise Invalid(errors=[FieldError(pointer="/currency", code="currency", message=message)])
    made, _ = SiteCurrency.objects.get_or_create(pk=1, defaults={"code": wanted})
    if made.code != wanted:
        raise CurrencyFixed(f"This site's prices are in {made.code}, set with the first of them; got {wanted}.")
    return wanted


def _record(action: str, price: PoolPrice, currency: str, actor: str, now: datetime) -> None:
    data = {
        "per_device_second": exact_text(price.per_device_second),
        "currency": currency,
        "valid_from": price.valid_from.isoformat(),
    }
    record_action(team_id=site_chain(), actor=actor, action=action, target=price.pool_id, now=now, data=data)
