"""Parsing of typed budgets."""

from decimal import Decimal
from typing import Final

from backend.budgets.limits import PLACES
from backend.budgets.models import SpendingLimit, Unit
from backend.errors import Invalid
from backend.pages.typed_numbers import TwoReadings, plain_number

SECONDS_AN_HOUR: Final = 3_600


def amount_typed(typed: str, unit: str) -> Decimal | None:
    """In the limit's own unit; empty text means no limit. Raises `Invalid`."""
    typed = typed.strip()
    if not typed:
        return None
    try:
        number = Decimal(plain_number(typed, whole=False))
        return round(number * (1 if unit == Unit.MONEY else SECONDS_AN_HOUR), PLACES)
    except TwoReadings as doubt:
        raise Invalid(f"Budget: {doubt}") from None
    except (ArithmeticError, ValueError):
        raise Invalid(f"Budget must be a number such as 250; got {typed[:40]}.") from None


def as_typed(limit: SpendingLimit | None) -> str:
    """The text that `amount_typed` reads as exactly this limit; hours have enough decimals for one second."""
    if limit is None:
        return ""
    amount = limit.amount if limit.unit == Unit.MONEY else limit.amount / SECONDS_AN_HOUR
    return f"{round(amount, 2 * PLACES):f}"
