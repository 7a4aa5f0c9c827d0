"""Idempotency-Key: the same request twice is one effect and two equal answers.

Invariants:
- the key's row, the effect and the stored answer are one transaction; a refused request stores nothing;
- of any number of racing requests with one key, one has the effect; the others wait a moment for its answer
  and are sent away with 409 `in_flight` if it takes longer;
- an answer is given again to those only who may see all that it tells: an API key that is limited to a project has
  Idempotency-Keys of its own;
- a key that comes with another request (method, path or body) is refused, for as long as the key lives.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

import psycopg.errors
from django.db import OperationalError, connection, transaction
from django.http import HttpRequest
from ninja import Header
from ninja.responses import NinjaJSONEncoder

from backend.api.models import IdempotencyKey
from backend.errors import Conflict, FieldError, Invalid

KEPT_FOR = timedelta(hours=24)
# One trip. An answer whose day is over counts for nothing, and its row becomes ours.
# A twin that is answered within 300 ms gets the answer; longer, and waiting requests would use up the connections.
_CLAIM = """
SET LOCAL lock_timeout = '300ms';
INSERT INTO api_idempotencykey AS known (team_id, key, method, path, body_sha256, location, created_at, expires_at)
VALUES (%s, %s, %s, %s, %s, '', %s, %s)
ON CONFLICT (team_id, key) DO UPDATE SET
    method = excluded.method, path = excluded.path, body_sha256 = excluded.body_sha256, status = NULL, response = NULL,
    location = '', created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE known.expires_at <= excluded.created_at
RETURNING id;
SET LOCAL lock_timeout = DEFAULT
"""
_KEEP = "UPDATE api_idempotencykey SET status = %s, response = %s, location = %s WHERE id = %s"
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
    """An answer that can be stored and given again. `text` is `body` as JSON, written as every route writes it."""

    status: int
    body: dict[str, Any]
    location: str = ""
    text: str = ""


def once(
    request: HttpRequest,
    effect: Callable[[], Answer],
    *,
    team_id: str,
    project_id: str | None = None,
    key: str | None,
    now: datetime,
) -> tuple[Answer, bool]:
    """The answer, and whether it is a replay. `project_id`: the one that the caller's API key is limited to."""
    with transaction.atomic():
        if key is None:
            return _written(effect()), False
        known_as = key if project_id is None else hashlib.sha256(f"{project_id} {key}".encode()).hexdigest()
        row = _claim(request, team_id=team_id, key=known_as, now=now)
        if row.status is not None and row.response is not None:
            return _written(Answer(status=row.status, body=row.response, location=row.location)), True
        answer = _written(effect())
        with connection.cursor() as db:
            db.execute(_KEEP, [answer.status, answer.text, answer.location, row.pk])
        return answer, False


def _written(answer: Answer) -> Answer:
    return replace(answer, text=json.dumps(answer.body, cls=NinjaJSONEncoder))


def _claim(request: HttpRequest, *, team_id: str, key: str, now: datetime) -> IdempotencyKey:
    """Our own new row (without a status), or the finished one of an equal request."""
    body_sha256 = hashlib.sha256(request.body).hexdigest()
    told: list[str | datetime] = [team_id, key, request.method or "", request.path, body_sha256, now, now + KEPT_FOR]
    try:
        with connection.cursor() as db:
            db.execute(_CLAIM, told)
            db.nextset()  # the first statement's result is nothing
            made = db.fetchone()
    except OperationalError as error:  # the transaction is over, with all that it set
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise InFlight from error
        raise
    if made is not None:
        return IdempotencyKey(pk=made[0])
    row = IdempotencyKey.objects.get(team_id=team_id, key=key)
    if (row.method, row.path, row.body_sha256) != (request.method, request.path, body_sha256):
        place = FieldError(
            pointer="/header/Idempotency-Key", code="reused", message="a new request needs a new Idempotency-Key"
        )
        raise Invalid("This Idempotency-Key was used for another request.", code="key_reused", errors=[place])
    return row


def forget_expired_keys(*, now: datetime) -> int:
    return IdempotencyKey.objects.filter(expires_at__lte=now).delete()[0]
