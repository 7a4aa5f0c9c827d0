"""Appends entries to a team's chain.

Invariants:
- an entry is written in the transaction of its action, under the lock of the team's head: neither exists without the
  other, and a chain has no forks;
- the hash covers everything that is stored, in a form that survives Postgres' jsonb.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from backend.api.request_context import current_request
from backend.audit.models import AuditEntry, AuditHead

_EXACT = 2**53  # beyond it floats are inexact integers, which jsonb writes with other digits


@transaction.atomic
def record_action(
    *, team_id: str, actor: str, action: str, target: str, now: datetime, data: Mapping[str, Any] | None = None
) -> AuditEntry:
    """Call it last in the action's transaction, since it locks the team's chain until the end.

    The request's id and address are those of the current request, if any.
    """
    AuditHead.objects.get_or_create(team_id=team_id)
    head = AuditHead.objects.select_for_update(no_key=True).get(pk=team_id)
    request = current_request.get()
    entry = AuditEntry(
        team_id=team_id,
        seq=head.seq + 1,
        at=now,
        actor=actor,
        action=action,
        target=_make_storable(target),
        data=_make_storable(dict(data or {})),
        request_id=request.request_id,
        ip=request.ip,
        previous_hash=head.hash,
    )
    entry.hash = hash_of(entry)
    entry.save(force_insert=True)
    AuditHead.objects.filter(pk=team_id).update(seq=entry.seq, hash=entry.hash)
    return entry


def hash_of(entry: AuditEntry) -> str:
    fields = [
        entry.previous_hash, entry.team_id, entry.seq, entry.at.astimezone(UTC).isoformat(), entry.actor, entry.action,
        entry.target, _canonicalize(entry.data), entry.request_id, entry.ip,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _make_storable(value: Any) -> Any:
    """The value in a form that jsonb accepts: no NUL, no half of a surrogate pair, no NaN or infinity."""
    match value:
        case str():
            return value.replace("\0", "\ufffd").encode(errors="replace").decode()
        case Mapping():
            return {_make_storable(str(name)): _make_storable(child) for name, child in value.items()}
        case list() | tuple():
            return [_make_storable(child) for child in value]
        case float() if value != value or value in {float("inf"), float("-inf")}:
            return str(value)
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)


def _canonicalize(value: Any) -> Any:
    """One spelling of each number: jsonb returns 1e16 as an integer, and 1.0 as 1.0."""
    match value:
        case dict():
            return {name: _canonicalize(child) for name, child in value.items()}
        case list():
            return [_canonicalize(child) for child in value]
        case bool():
            return value
        case int() | float() if abs(value) >= _EXACT:
            return repr(float(value))
        case float() if value.is_integer():
            return int(value)
        case _:
            return value
