"""The bytes that a team stores, and may store.

Invariants:
- bytes are reserved under the lock of the team's row, in the transaction that creates the asset, and all at once: an
  upload owns what it will need from the beginning, so concurrent uploads never exceed the quota together;
- use is a sum over rows, never a counter: rows count until they are deleted, even if a deletion was interrupted.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Sum

from backend.accounts.models import Team
from backend.assets.models import Asset, AssetOrigin, AssetState, StorageQuota
from backend.audit.services import record_action
from backend.errors import Conflict

OF_A_TEAM: Final = 256 * 2**30  # a data set of 100 GB and two versions of a 65 GB model; operators may change it


class OverStorageQuota(Conflict):
    """Your team's storage is full. Delete an asset, or ask an operator for more."""

    code = "over_storage_quota"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    used_bytes: int
    max_bytes: int


def storage_of(team: Team) -> Storage:
    quota = StorageQuota.objects.filter(team=team).first()
    return Storage(used_bytes=used_bytes(team), max_bytes=_limit_of(quota))


def used_bytes(team: Team) -> int:
    """Registered assets belong to the operator and do not count."""
    kept = Asset.objects.filter(team=team, origin=AssetOrigin.UPLOADED).exclude(state=AssetState.DELETED)
    return kept.aggregate(total=Sum("num_bytes"))["total"] or 0


def lock_storage(team_id: str) -> StorageQuota:
    """Locks storage and version numbers of the team until the end of the transaction."""
    StorageQuota.objects.get_or_create(team_id=team_id)
    return StorageQuota.objects.select_for_update(no_key=True).get(pk=team_id)


def refuse_beyond(quota: StorageQuota, team: Team, *, num_bytes: int) -> None:
    """For a locked quota. Raises `OverStorageQuota`."""
    used, most = used_bytes(team), _limit_of(quota)
    if used + num_bytes > most:
        raise OverStorageQuota(
            f"This needs {num_bytes:,} bytes, and your team uses {used:,} of {most:,}. "
            "Delete an asset, or ask an operator for more.",
            used_bytes=used,
            max_bytes=most,
        )


def set_storage(team: Team, max_bytes: int | None, *, actor: str, now: datetime) -> Storage:
    """Existing assets are kept, even beyond the new limit."""
    with transaction.atomic():
        quota = lock_storage(team.pk)
        before, quota.max_bytes = quota.max_bytes, max_bytes
        quota.save(update_fields=["max_bytes"])
        data = {"before": before, "after": max_bytes}
        record_action(team_id=team.pk, actor=actor, action="storage.changed", target=team.pk, now=now, data=data)
    return storage_of(team)


def _limit_of(quota: StorageQuota | None) -> int:
    return OF_A_TEAM if quota is None or quota.max_bytes is None else quota.max_bytes
