"""Idempotency-Key: the same request twice is one effect and two equal answers.

Invariants:
- the key's row, the effect and the stored answer are one transaction; a refused request stores nothing;
- of any number of racing requests with one key, one has the effect; the others wait a moment for its answer
  and are sent away with 409 `in_flight` if it takes longer;
- a key that comes with another request (method, path or body) is refused, for as long as the key lives.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import psycopg.errors
from django.db import IntegrityError, OperationalError, connection, transaction
from django.http import HttpRequest
from ninja import Header

from backend.api.models import IdempotencyKey
from backend.errors import Conflict, FieldError, Invalid

KEPT_FOR = timedelta(hours=24)
# A twin that is answered within this gets the answer; longer, and waiting requests would use up the connections.
_WAIT_FOR_TWIN = "300ms"
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="Any text of your own; send it again to ask again safely.",
    ),
]


class InFlight(Conflict):
    """The first request with this Idempotency-Key is still being worked on."""

    code = "in_flight"
    retryable = True

    def __init__(self) -> None:
        super().__init__()
        self.headers = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What can be stored and given again. `body` is plain JSON."""

    status: int
    body: dict[str, Any]
    location: str = ""


def once(
    request: HttpRequest, effect: Callable[[], Answer], *, team_id: str, key: str | None, now: datetime
) -> tuple[Answer, bool]:
    """The answer, and whether it is a replay."""
    with transaction.atomic():
        if key is None:
            return effect(), False
        row = _claim(request, team_id=team_id, key=key, now=now)
        if row.status is not None and row.response is not None:
            return Answer(status=row.status, body=row.response, location=row.location), True
        answer = effect()
        row.status, row.response, row.location = answer.status, answer.body, answer.location
        row.save(update_fields=["status", "response", "location"])
        return answer, False


def _claim(request: HttpRequest, *, team_id: str, key: str, now: datetime) -> IdempotencyKey:
    """Our own new row (without a status), or the finished one of an equal request."""
    body_sha256 = hashlib.sha256(request.body).hexdigest()
    IdempotencyKey.objects.filter(team_id=team_id, key=key, expires_at__lte=now).delete()
    try:
        with transaction.atomic():
            _set_lock_timeout(f"'{_WAIT_FOR_TWIN}'")  # rolled back with the savepoint
            row = IdempotencyKey.objects.create(
                team_id=team_id,
                key=key,
                method=request.method or "",
                path=request.path,
                body_sha256=body_sha256,
                created_at=now,
                expires_at=now + KEPT_FOR,
            )
            _set_lock_timeout("DEFAULT")
            return row
    except IntegrityError:
        row = IdempotencyKey.objects.get(team_id=team_id, key=key)
    except OperationalError as error:
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise InFlight from error
        raise
    if (row.method, row.path, row.body_sha256) != (request.method, request.path, body_sha256):
        place = FieldError(
            pointer="/header/Idempotency-Key", code="reused", message="a new request needs a new Idempotency-Key"
        )
        raise Invalid("This Idempotency-Key was used for another request.", code="key_reused", errors=[place])
    return row


def _set_lock_timeout(value: str) -> None:
    with connection.cursor() as db:
        db.execute(f"SET LOCAL lock_timeout = {value}")


def forget_expired_keys(*, now: datetime) -> int:
    return IdempotencyKey.objects.filter(expires_at__lte=now).delete()[0]
