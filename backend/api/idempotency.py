"""Idempotency-Key: a repeated request has one effect and gets the same response.

Invariants:
- the key's row, the effect and the stored response are one transaction; a refused request stores nothing;
- of concurrent requests with one key, one has the effect; the others wait a moment for its response, and get 409
  `in_flight` if it takes longer;
- a stored response is repeated only to callers who may see all of it: an API key limited to a project has
  Idempotency-Keys of its own;
- a key sent with a different request (method, path or body) is refused while the key lives.
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
# One round trip. An expired row counts as none and is reused.
# Concurrent requests wait 300 ms for the response; longer waits would use up the connections.
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
        description="Any unique text. A retry with the same key returns the first response.",
    ),
]


class InFlight(Conflict):
    """The first request with this Idempotency-Key is still in progress. Try again in a moment."""

    code = "in_flight"
    retryable = True

    def __init__(self) -> None:
        super().__init__()
        self.headers = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response that can be stored and repeated. `text` is `body` as JSON, encoded as every route does."""

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
    """The response, and whether it is a replay. `project_id`: the project that the caller's API key is limited to."""
    with transaction.atomic():
        if key is None:
            return _with_text(effect()), False
        known_as = key if project_id is None else hashlib.sha256(f"{project_id} {key}".encode()).hexdigest()
        row = _claim(request, team_id=team_id, key=known_as, now=now)
        if row.status is not None and row.response is not None:
            return _with_text(Answer(status=row.status, body=row.response, location=row.location)), True
        answer = _with_text(effect())
        with connection.cursor() as db:
            db.execute(_KEEP, [answer.status, answer.text, answer.location, row.pk])
        return answer, False


def _with_text(answer: Answer) -> Answer:
    return replace(answer, text=json.dumps(answer.body, cls=NinjaJSONEncoder))


def _claim(request: HttpRequest, *, team_id: str, key: str, now: datetime) -> IdempotencyKey:
    """A new row of this request (without a status), or the finished one of an equal request."""
    body_sha256 = hashlib.sha256(request.body).hexdigest()
    values: list[str | datetime] = [team_id, key, request.method or "", request.path, body_sha256, now, now + KEPT_FOR]
    try:
        with connection.cursor() as db:
            db.execute(_CLAIM, values)
            db.nextset()  # skips SET, which has no result
            row_id = db.fetchone()
    except OperationalError as error:  # this also ends the transaction, with its settings
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise InFlight from error
        raise
    if row_id is not None:
        return IdempotencyKey(pk=row_id[0])
    row = IdempotencyKey.objects.get(team_id=team_id, key=key)
    if (row.method, row.path, row.body_sha256) != (request.method, request.path, body_sha256):
        place = FieldError(
            pointer="/header/Idempotency-Key", code="reused", message="must be a new key for a different request"
        )
        raise Invalid(
            "This Idempotency-Key was used for a different request. Use a new key.", code="key_reused", errors=[place]
        )
    return row


def forget_expired_keys(*, now: datetime) -> int:
    return IdempotencyKey.objects.filter(expires_at__lte=now).delete()[0]
