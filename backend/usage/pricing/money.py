"""Money without rounding: integers inside, decimals in the database and in the API.

    price of a device-second   10^-12 of the currency (picos)
    x device-microseconds      10^-6
    = amount                   10^-18 of the currency (attos)

Invariants:
- amounts are never floats, and are rounded only for display: an inexact operation raises;
- the widest sum fits: a million devices for a century at a million a second is 42 digits.
"""

from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Final

PRICE_PLACES: Final = 12
PRICE_DIGITS: Final = 24
PLACES: Final = 18
DIGITS: Final = 48
_EXACT: Final = Context(prec=80, traps=[Inexact, InvalidOperation, Overflow])
_ROUNDED: Final = Context(prec=80, rounding=ROUND_HALF_EVEN)


def picos_of(price: Decimal) -> int:
    return int(_EXACT.to_integral_exact(_EXACT.scaleb(price, PRICE_PLACES)))


def attos_of(amount: Decimal) -> int:
    return int(_EXACT.to_integral_exact(_EXACT.scaleb(amount, PLACES)))


def amount_of(attos: int) -> Decimal:
    return _EXACT.scaleb(Decimal(attos), -PLACES)


def exact_text(amount: Decimal) -> str:
    """For programs: every digit, without trailing zeros."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def shown(amount: Decimal, *, places: int = 2) -> str:
    """For people: rounded, with separators; a price too small for that shows its first two digits."""
    if amount and abs(amount) < Decimal(1).scaleb(-places):
        return exact_text(amount.quantize(Decimal(1).scaleb(amount.adjusted() - 1), context=_ROUNDED))
    return f"{amount.quantize(Decimal(1).scaleb(-places), context=_ROUNDED):,f}"
