"""Adding to a team's chain."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from backend.audit.models import AuditEntry, AuditHead


@transaction.atomic
def record_action(
    *, team_id: str, actor: str, action: str, target: str, now: datetime, data: Mapping[str, Any] | None = None
) -> AuditEntry:
    """Call it in the transaction of what it tells of, as the last thing: the team's chain is locked until its end."""
    AuditHead.objects.get_or_create(team_id=team_id)
    head = AuditHead.objects.select_for_update(no_key=True).get(pk=team_id)
    entry = AuditEntry(
        team_id=team_id,
        seq=head.seq + 1,
        at=now,
        actor=actor,
        action=action,
        target=target,
        data=dict(data or {}),
        previous_hash=head.hash,
    )
    entry.hash = hash_of(entry)
    entry.save(force_insert=True)
    AuditHead.objects.filter(pk=team_id).update(seq=entry.seq, hash=entry.hash)
    return entry


def hash_of(entry: AuditEntry) -> str:
    told = [
        entry.previous_hash, entry.team_id, entry.seq, entry.at.isoformat(), entry.actor, entry.action, entry.target,
        entry.data, entry.request_id,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
