"""Prices of pools: set, withdraw, read.

Invariants:
- a price begins now or later, never earlier, and never changes: past bills do not depend on today's prices;
- a price that has not begun may be withdrawn, until shortly before it begins;
- setting a price names the prices that were seen (If-Match): of two concurrent operators the second is refused.
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
"""A price that begins within this time is final: running jobs may already be priced with it when it begins."""
MOST_AHEAD: Final = timedelta(days=3_660)
_MOST: Final = Decimal(10) ** (PRICE_DIGITS - PRICE_PLACES)


class PriceTaken(Conflict):
    """A price of this pool begins at that very moment. Withdraw it first or choose another moment."""

    code = "price_taken"


class PriceBegun(Conflict):
    """A price that has begun, or begins within a minute, cannot be withdrawn. Set a new price instead."""

    code = "price_begun"


class CurrencyFixed(Conflict):
    """The site's currency was set with its first price and cannot be changed."""

    code = "currency_fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTerms:
    per_device_second: Decimal
    valid_from: datetime | None
    """None means now."""
    currency: str | None = None
    """Required with a site's first price."""


def set_price(
    pool: ResourcePool, terms: PriceTerms, *, if_match: str | None = None, actor: str, now: datetime
) -> PoolPrice:
    """Raises `PreconditionFailed`, `PriceTaken`, `CurrencyFixed`, `Invalid`."""
    valid_from = now if terms.valid_from is None else terms.valid_from
    _validate_price(terms.per_device_second, valid_from, now)
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
            raise NotFound("Price not found in this pool.")
        if price.valid_from <= now + FINAL_BEFORE:
            raise PriceBegun
        _record("price.withdrawn", price, site_currency(), actor, now)
        price.delete()


def prices_of(pool: ResourcePool) -> QuerySet[PoolPrice]:
    """Latest `valid_from` first."""
    return PoolPrice.objects.filter(pool=pool).order_by("-valid_from")


def price_at(pool: ResourcePool, moment: datetime) -> Decimal:
    """Price of a device-second; 0 before the first price."""
    price = prices_of(pool).filter(valid_from__lte=moment).values_list("per_device_second", flat=True).first()
    return price if price is not None else Decimal(0)


def price_and_currency(pool: ResourcePool, moment: datetime) -> tuple[Decimal, str]:
    return price_at(pool, moment), site_currency()


def price_lines(pools: Collection[str]) -> Mapping[str, Sequence[PriceView]]:
    """Prices by pool, oldest first; pools without a price are left out."""
    lines: dict[str, list[PriceView]] = defaultdict(list)
    rows = PoolPrice.objects.filter(pool_id__in=pools).order_by("valid_from")
    for pool, valid_from, price in rows.values_list("pool_id", "valid_from", "per_device_second"):
        lines[pool].append(PriceView(valid_from=valid_from, picos=picos_of(price)))
    return lines


def site_currency() -> str:
    """Empty until the first price is set."""
    return SiteCurrency.objects.values_list("code", flat=True).first() or ""


def tag_of_prices(pool: ResourcePool) -> str:
    """Prices are added and withdrawn but never change, so the newest id and the count identify the list."""
    ids = list(PoolPrice.objects.filter(pool=pool).order_by("-pk").values_list("pk", flat=True))
    return etag_of(len(ids), ids[0] if ids else 0)


def _validate_price(price: Decimal, valid_from: datetime, now: datetime) -> None:
    errors = []
    if not price.is_finite() or price < 0 or price >= _MOST or price != round(price, PRICE_PLACES):
        message = f"must be 0 or more, below {_MOST:,f}, with at most {PRICE_PLACES} decimals; got {price}"
        errors.append(FieldError(pointer="/per_device_second", code="price", message=message))
    if not now <= valid_from <= now + MOST_AHEAD:
        message = (
            f"must be now ({now.isoformat()}) or later, within {MOST_AHEAD.days // 366} years: earlier usage keeps its "
            f"price; got {valid_from.isoformat()}"
        )
        errors.append(FieldError(pointer="/valid_from", code="past", message=message))
    if errors:
        raise Invalid(errors=errors)


def _settle_currency(wanted: str | None) -> str:
    """The first price sets the currency; later ones may repeat it."""
    known = site_currency()
    if wanted is None:
        if known:
            return known
        message = "is required with the site's first price: three letters such as EUR; cannot be changed later"
        raise Invalid(errors=[FieldError(pointer="/currency", code="missing", message=message)])
    if not re.fullmatch(CURRENCY, wanted):
        message = f"must be three capital letters (ISO 4217) such as EUR; got {wanted[:40]}"
        raise Invalid(errors=[FieldError(pointer="/currency", code="currency", message=message)])
    row, _ = SiteCurrency.objects.get_or_create(pk=1, defaults={"code": wanted})
    if row.code != wanted:
        raise CurrencyFixed(f"This site's currency is {row.code} and cannot be changed; got {wanted}.")
    return wanted


def _record(action: str, price: PoolPrice, currency: str, actor: str, now: datetime) -> None:
    data = {
        "per_device_second": exact_text(price.per_device_second),
        "currency": currency,
        "valid_from": price.valid_from.isoformat(),
    }
    record_action(team_id=site_chain(), actor=actor, action=action, target=price.pool_id, now=now, data=data)
