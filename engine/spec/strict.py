"""The bases of everything that crosses a border: frozen, no NaN, no control characters, and but for news no unknown
field."""

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# Postgres refuses NUL in text and jsonb, terminals obey the rest; newline and tab are ordinary text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Beyond them a time of day in another zone, or a minute earlier, has no name in Python's calendar."""


def _without_control_characters(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must not contain control characters")
    return text


def within_calendar(moment: datetime) -> datetime:
    """The same in UTC; without a zone it is taken for UTC. Raises `ValueError`."""
    try:
        shifted = moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        is_within = EARLIEST <= shifted < LATEST
    except OverflowError:
        is_within = False
    if not is_within:
        raise ValueError(f"must be a time from {EARLIEST:%Y} until before {LATEST:%Y}")
    return shifted


def _told(moment: datetime) -> datetime:
    try:
        return within_calendar(moment)
    except ValueError:
        return EARLIEST


Text = Annotated[str, AfterValidator(_without_control_characters)]
Moment = Annotated[datetime, AfterValidator(within_calendar)]
"""A time that can be stored, compared, and shifted to any zone."""
ToldMoment = Annotated[datetime, AfterValidator(_told)]
"""The same by a clock that may be wrong: what it says is taken all the same, beyond the calendar as the earliest."""
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
BigCount = Annotated[int, Field(ge=0, le=2**63 - 1)]
Ordinal = Annotated[int, Field(ge=1, le=2**31 - 1)]
BigOrdinal = Annotated[int, Field(ge=1, le=2**63 - 1)]
Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""What the columns of the database hold, and every reader of JSON."""


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Told(Strict):
    """What driver and control plane tell each other while an attempt runs. One of them may be of a later release, so a
    field that is not known yet is passed over; what is known is judged as strictly as ever."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
