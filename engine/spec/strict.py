"""The base of everything that crosses a border: frozen, no unknown field, no NaN, no control characters."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

# Postgres refuses NUL in text and jsonb, terminals obey the rest; newline and tab are ordinary text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def _without_control_characters(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must not contain control characters")
    return text


Text = Annotated[str, AfterValidator(_without_control_characters)]


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
