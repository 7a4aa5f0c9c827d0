"""The bytes that a team may keep, and those that it keeps.

Invariants:
- bytes are taken under the team's row, in the transaction that makes the asset, and all at once: what an upload will
  need is its own from the beginning, so of any number of racing uploads none is let in beyond the quota;
- use is a sum over rows, never a counter: what is not deleted yet counts, whatever happened to whoever deletes.
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

OF_A_TEAM: Final = 256 * 2**30  # a data set of 100 GB and two versions of a model of 65 GB, until an operator says else


class OverStorageQuota(Conflict):
    """The team has no room for this: delete something, or ask an operator for more."""

    code = "over_storage_quota"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    used_bytes: int
    max_bytes: int


def storage_of(team: Team) -> Storage:
    quota = StorageQuota.objects.filter(team=team).first()
    return Storage(used_bytes=used_bytes(team), max_bytes=_limit(quota))


def used_bytes(team: Team) -> int:
    """What lies in the shared folder is the operator's, and costs a team nothing."""
    kept = Asset.objects.filter(team=team, origin=AssetOrigin.UPLOADED).exclude(state=AssetState.DELETED)
    return kept.aggregate(total=Sum("num_bytes"))["total"] or 0


def lock_storage(team_id: str) -> StorageQuota:
    """Until the transaction's end, nobody else takes bytes or gives versions in this team."""
    StorageQuota.objects.get_or_create(team_id=team_id)
    return StorageQuota.objects.select_for_update(no_key=True).get(pk=team_id)


def refuse_beyond(quota: StorageQuota, team: Team, *, num_bytes: int) -> None:
    """Of a locked quota. Raises `OverStorageQuota`."""
    used, most = used_bytes(team), _limit(quota)
    if used + num_bytes > most:
        raise OverStorageQuota(
            f"This needs {num_bytes} bytes; your team keeps {used} of the {most} that it may.",
            used_bytes=used,
            max_bytes=most,
        )


def set_storage(team: Team, max_bytes: int | None, *, actor: str, now: datetime) -> Storage:
    """What is kept stays, even beyond the new limit."""
    with transaction.atomic():
        quota = lock_storage(team.pk)
        before, quota.max_bytes = quota.max_bytes, max_bytes
        quota.save(update_fields=["max_bytes"])
        data = {"before": before, "after": max_bytes}
        record_action(team_id=team.pk, actor=actor, action="storage.changed", target=team.pk, now=now, data=data)
    return storage_of(team)


def _limit(quota: StorageQuota | None) -> int:
    return OF_A_TEAM if quota is None or quota.max_bytes is None else quota.max_bytes
