"""Prices of a pool per device-hour or device-second, set by operators."""

from datetime import UTC, datetime
from decimal import Decimal

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from backend.accounts.operators.acting import Operator
from backend.borders.types import read_count, read_moment
from backend.clock import database_now
from backend.errors import Invalid
from backend.pages.operator.frame import act_and_redirect, for_operators, text_of, version_of
from backend.pages.operator.pool_views import pool_or_404
from backend.pages.typed_numbers import TwoReadings, plain_number
from backend.usage.pricing.money import PRICE_PLACES, exact_text
from backend.usage.pricing.prices import PriceTerms, set_price, site_currency, withdraw_price

SECONDS = {"hour": 3_600, "second": 1}


@require_POST
@for_operators
def set_one(request: HttpRequest, operator: Operator, pool_id: str) -> HttpResponse:
    pool = pool_or_404(pool_id)

    def act() -> str:
        terms = PriceTerms(
            per_device_second=_per_second(text_of(request, "price"), text_of(request, "per")),
            valid_from=_moment(text_of(request, "valid_from")),
            currency=text_of(request, "currency").upper() or None,
        )
        price = set_price(pool, terms, if_match=version_of(request), actor=operator.name, now=database_now())
        return (
            f"A device-second of {pool.name} costs {exact_text(price.per_device_second)} {site_currency()} from "
            f"{price.valid_from:%Y-%m-%d %H:%M} UTC on. Earlier usage keeps its price."
        )

    return act_and_redirect(request, act, "operator_pool", pool_id)


@require_POST
@for_operators
def withdraw(request: HttpRequest, operator: Operator, pool_id: str, price_id: str) -> HttpResponse:
    pool = pool_or_404(pool_id)

    def act() -> str:
        number, seen = read_count(price_id) or 0, version_of(request)
        withdraw_price(pool, number, if_match=seen, actor=operator.name, now=database_now())
        return "Price withdrawn. It had not taken effect."

    return act_and_redirect(request, act, "operator_pool", pool_id)


def _per_second(typed: str, per: str) -> Decimal:
    """Rounded to the precision of a stored price; the page then shows the rounded price per second."""
    if per not in SECONDS:
        raise Invalid("Choose whether the price is per device-hour or per device-second.")
    try:
        price = Decimal(plain_number(typed, whole=False) or "x")
        return round(price / SECONDS[per], PRICE_PLACES) if per == "hour" else price
    except TwoReadings as doubt:
        raise Invalid(f"Price: {doubt}") from None
    except (ArithmeticError, ValueError):
        raise Invalid(f"Price: enter a number such as 2.50; got {typed[:40]}.") from None


def _moment(typed: str) -> datetime | None:
    """In the browser's format, in UTC; None: now."""
    if not typed:
        return None
    try:
        moment = read_moment(typed)
    except ValueError:
        raise Invalid("From: enter a date and time in UTC, such as 2026-02-01T00:00.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
