"""Base classes of everything that crosses a process border: frozen, no NaN, no control characters and, except in
messages between driver and control plane, no unknown fields."""

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# Postgres refuses NUL in text and jsonb, terminals execute the others; newline and tab are ordinary text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Beyond these, converting to another time zone or subtracting a minute can leave the range of `datetime`."""


def _without_control_characters(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must not contain control characters")
    return text


def within_calendar(moment: datetime) -> datetime:
    """The moment in UTC; one without a zone counts as UTC. Raises `ValueError`."""
    try:
        shifted = moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        is_within = EARLIEST <= shifted < LATEST
    except OverflowError:
        is_within = False
    if not is_within:
        raise ValueError(f"must be a time from {EARLIEST:%Y} until before {LATEST:%Y}")
    return shifted


def _clamp(moment: datetime) -> datetime:
    try:
        return within_calendar(moment)
    except ValueError:
        return EARLIEST


Text = Annotated[str, AfterValidator(_without_control_characters)]
Moment = Annotated[datetime, AfterValidator(within_calendar)]
"""A time that can be stored, compared and converted to any zone."""
ReportedMoment = Annotated[datetime, AfterValidator(_clamp)]
"""A time from another process's clock, which may be wrong: never refused; outside the calendar it becomes EARLIEST."""
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
BigCount = Annotated[int, Field(ge=0, le=2**63 - 1)]
Ordinal = Annotated[int, Field(ge=1, le=2**31 - 1)]
BigOrdinal = Annotated[int, Field(ge=1, le=2**63 - 1)]
Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""The range of the database's bigint columns."""


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Lenient(Strict):
    """Messages between driver and control plane while an attempt runs. Either may run a later release, so unknown
    fields are ignored; known fields are validated strictly."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
