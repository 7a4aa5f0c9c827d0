"""REST: prices of pools. Every user of a pool may read them; platform operators set them."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status
from pydantic import BaseModel, Field

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.api.etags import IfMatch, tagged
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.borders.types import PathId, ZonedMoment, read_count
from backend.clock import database_now
from backend.pools.selectors import the_pool
from backend.usage.models import PoolPrice
from backend.usage.pricing.money import PRICE_DIGITS, PRICE_PLACES, exact_text
from backend.usage.pricing.prices import (
    CURRENCY,
    PriceTerms,
    prices_of,
    set_price,
    site_currency,
    tag_of_prices,
    withdraw_price,
)
from engine.spec.strict import Strict, Text

router = Router(tags=["Pools"])

MAY_SEE_USE = ApiKeyAuth("usage:read")
MAY_OPERATE = ApiKeyAuth("quota:write")
_DECIMAL = rf"\d{{1,{PRICE_DIGITS - PRICE_PLACES}}}(\.\d{{1,{PRICE_PLACES}}})?"


class PriceOut(BaseModel):
    id: str
    per_device_second: str = Field(description="An exact decimal.")
    currency: str = Field(description="ISO 4217, the same for the whole site.")
    valid_from: datetime = Field(description="Until the pool's next price begins. Free before the first price.")


class PriceIn(Strict):
    per_device_second: Annotated[Text, Field(pattern=f"^{_DECIMAL}$")] = Field(
        description=f"A decimal as text with at most {PRICE_PLACES} places, so that nothing is rounded."
    )
    valid_from: ZonedMoment | None = Field(None, description="Now or later. Null means now.")
    currency: Annotated[Text, Field(pattern=f"^{CURRENCY}$")] | None = Field(
        None, description="ISO 4217. Required with the site's first price; cannot be changed later."
    )


@router.get(
    "/pools/{pool_id}/prices",
    auth=MAY_SEE_USE,
    response={200: Page[PriceOut]} | problems(404),
    summary="List a pool's prices",
)
def prices(request: HttpRequest, response: HttpResponse, pool_id: PathId) -> Page[PriceOut]:
    """Latest `valid_from` first. The ETag covers all of them: send it as If-Match when you set a price."""
    caller = caller_of(request)
    pool = the_pool(pool_id, of=None if "quota:write" in caller.scopes else caller.team)
    tagged(response, tag_of_prices(pool))
    currency = site_currency()
    return Page(data=[_out(price, currency) for price in prices_of(pool)])


@router.post(
    "/pools/{pool_id}/prices",
    auth=MAY_OPERATE,
    response={201: PriceOut} | problems(400, 404, 409, 412, 413, 415, 422),
    summary="Set a pool's price",
)
def post_price(
    request: HttpRequest, response: HttpResponse, pool_id: PathId, body: PriceIn, if_match: IfMatch = None
) -> Status[PriceOut]:
    """For operators. Applies from `valid_from` on; earlier use keeps its price or stays free."""
    pool, now = the_pool(pool_id), database_now()
    terms = PriceTerms(
        per_device_second=Decimal(body.per_device_second), valid_from=body.valid_from, currency=body.currency
    )
    price = set_price(pool, terms, if_match=if_match, actor=caller_of(request).actor, now=now)
    tagged(response, tag_of_prices(pool))
    return Status(201, _out(price, site_currency()))


@router.delete(
    "/pools/{pool_id}/prices/{price_id}",
    auth=MAY_OPERATE,
    response={204: None} | problems(404, 409, 412, 422),
    summary="Withdraw a price that has not begun",
)
def delete_price(request: HttpRequest, pool_id: PathId, price_id: PathId, if_match: IfMatch = None) -> Status[None]:
    """For operators. 409 `price_begun` if the price has begun: set a new one instead."""
    pool, number = the_pool(pool_id), read_count(price_id) or 0
    withdraw_price(pool, number, if_match=if_match, actor=caller_of(request).actor, now=database_now())
    return Status(204, None)


def _out(price: PoolPrice, currency: str) -> PriceOut:
    return PriceOut(
        id=str(price.pk),
        per_device_second=exact_text(price.per_device_second),
        currency=currency,
        valid_from=price.valid_from,
    )
