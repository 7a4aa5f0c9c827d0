"""Types of untrusted input: ids, times, days, names, counts.

A route annotates its parameters with them (`tests/backend/borders/test_every_border.py` refuses a raw `str` id,
`datetime`, `date` or unbounded `int`); pages, cursors, sockets and commands call the functions behind them.

Invariants:
- a valid value can be stored, compared, converted to any zone and printed: Postgres, its driver and Python's calendar
  accept it;
- a malformed id in a URL is treated like an unknown one: 404;
- a name is one visible line, and cannot reverse the direction of the text around it.
"""

import re
from datetime import date, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, AwareDatetime, Field

from backend.errors import NotFound
from engine.spec.printable import refuse_unreadable
from engine.spec.strict import EARLIEST, LATEST, Text, within_calendar
from engine.spec.strict import Moment as Moment

ID_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
LARGEST: Final = 2**63 - 1
"""The largest integer of the database."""
_ID: Final = re.compile(ID_PATTERN, re.ASCII)
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_COUNT: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


def is_storable(text: str) -> bool:
    """Whether Postgres can store it: no NUL, no half of a surrogate pair."""
    return _UNSTORABLE.search(text) is None


def is_id(text: str) -> bool:
    """Whether it is a well-formed id or name of a model or template."""
    return _ID.fullmatch(text) is not None


def _named_in_a_path(text: str) -> str:
    if not is_id(text):
        raise NotFound
    return text


def _day_within_calendar(day: date) -> date:
    if not EARLIEST.date() <= day < LATEST.date():
        raise ValueError(f"must be a day from {EARLIEST:%Y} until before {LATEST:%Y}, such as 2026-01-31")
    return day


def read_moment(text: str) -> datetime:
    """Parses ISO 8601. Raises `ValueError`."""
    return within_calendar(datetime.fromisoformat(text))


def read_day(text: str) -> date:
    """Raises `ValueError`."""
    return _day_within_calendar(date.fromisoformat(text))


def read_count(text: str) -> int | None:
    """A whole number that the database can hold, else None."""
    number = int(text) if _COUNT.fullmatch(text) else LARGEST + 1
    return number if number <= LARGEST else None


PathId = Annotated[str, AfterValidator(_named_in_a_path)]
"""An id in a path."""
Id = Annotated[str, Field(min_length=1, max_length=64, pattern=f"^{ID_PATTERN}$")]
"""An id in a query or a body."""
ZonedMoment = Annotated[AwareDatetime, AfterValidator(within_calendar)]
"""For times that must not be off by hours: the zone is required."""
Day = Annotated[date, AfterValidator(_day_within_calendar)]
OneLine = Annotated[Text, AfterValidator(refuse_unreadable)]
"""For names, tags and descriptions, which appear in lists, messages and mails."""
