"""Pages of a list, newest first: {data, has_more, next_cursor}.

Invariant: the cursor names the last row seen, so rows added or removed meanwhile are neither repeated nor skipped.
It is opaque to callers; an invalid one is refused.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Generic, Protocol, TypeVar

from django.db.models import Model, Q, QuerySet
from ninja import Query
from pydantic import BaseModel

from backend.borders.types import is_id, read_moment
from backend.errors import FieldError, Invalid
from engine.spec.strict import Text

MAX_LIMIT = 200
DEFAULT_LIMIT = 50
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of entries.")]
Cursor = Annotated[Text | None, Query(max_length=300, description="`next_cursor` of the previous page.")]
T = TypeVar("T")
Row = TypeVar("Row", bound=Model)


class Page(BaseModel, Generic[T]):
    data: list[T]
    has_more: bool = False
    next_cursor: str | None = None


class Dated(Protocol):
    pk: str
    created_at: datetime


def page_after(rows: QuerySet[Row], *, cursor: str | None, limit: int) -> tuple[Sequence[Row], str | None]:
    """Rows ordered by (-created_at, -id), and the cursor of the next page if there is one."""
    if cursor is not None:
        at, last_id = _read_cursor(cursor)
        rows = rows.filter(Q(created_at__lt=at) | Q(created_at=at, pk__lt=last_id))
    seen = list(rows[: limit + 1])
    if len(seen) <= limit:
        return seen, None
    return seen[:limit], _cursor_of(seen[limit - 1])  # type: ignore[arg-type]  # every paged model is Dated


def _cursor_of(row: Dated) -> str:
    return base64.urlsafe_b64encode(json.dumps([row.created_at.isoformat(), row.pk]).encode()).decode().rstrip("=")


def _read_cursor(text: str) -> tuple[datetime, str]:
    try:
        at, last_id = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        moment = read_moment(at)
        if not is_id(last_id):
            raise ValueError("not a cursor")
    except (ValueError, TypeError, binascii.Error, RecursionError):
        error = FieldError(pointer="/query/cursor", code="cursor", message="must be `next_cursor` of the previous page")
        raise Invalid("The cursor is invalid.", errors=[error]) from None
    return moment, last_id
