"""Deletion of assets, and the sweep of deleted assets and abandoned uploads.

Invariants:
- an asset used by a job that has not ended cannot be deleted;
- bytes are touched only `GRACE` after the mark, when every transaction that had not seen the mark has ended, and not if
  one of those submitted a job with the asset: then the mark is removed;
- a row becomes `deleted` after its last byte is gone; a sweep that dies in between leaves it marked, and the next one
  starts over.
"""

import logging
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import F

from backend.assets.models import GONE, Asset, AssetOrigin, AssetState
from backend.assets.places import remove_bytes
from backend.assets.selectors import UNKNOWN, assets_in_use
from backend.audit.services import record_action
from backend.errors import Conflict, NotFound
from backend.store.port import StoreError

log = logging.getLogger(__name__)

GRACE: Final = timedelta(seconds=60)
"""Longer than the database lets a statement (20 s) and an idle transaction (30 s) live."""
GRACE_OF_UPLOADS: Final = timedelta(minutes=5)
"""Longer than the store's tries and waits together (165 s) for a part already being written."""
CLAIM_LASTS: Final = timedelta(seconds=60)
DELETIONS_A_SWEEP: Final = 20
ACTOR: Final = "sweep"


class InUse(Conflict):
    """A job that has not ended uses this asset. Cancel the job, or wait until it ends."""

    code = "in_use"


def delete_asset(asset_id: str, *, actor: str, now: datetime, reason: str = "asked") -> None:
    """Marks the asset as deleted. Raises `InUse`, `NotFound`."""
    with transaction.atomic():
        asset = Asset.objects.select_for_update(no_key=True).filter(pk=asset_id).exclude(state__in=GONE).first()
        if asset is None:
            raise NotFound(UNKNOWN)
        user = assets_in_use([asset.pk]).get(asset.pk)
        if user is not None:
            raise InUse(job=user) if asset.team_id else InUse()  # a shared asset's job may be another team's
        grace = GRACE_OF_UPLOADS if asset.state == AssetState.UPLOADING else GRACE
        asset.state, asset.next_sweep_at, asset.expires_at = AssetState.DELETING, now + grace, None
        asset.save(update_fields=["state", "next_sweep_at", "expires_at"])
        data = {"kind": asset.kind, "name": asset.name, "version": asset.version, "reason": reason}
        if asset.team_id is None:
            log.info("deleted shared asset=%s by=%s", asset.pk, actor)
        else:
            record_action(
                team_id=asset.team_id, actor=actor, action="asset.deleted", target=asset.pk, now=now, data=data
            )


def give_up_forgotten(*, now: datetime) -> int:
    """Abandons uploads without a new part for long."""
    forgotten = Asset.objects.filter(state=AssetState.UPLOADING, expires_at__lte=now).order_by("expires_at")
    given_up = 0
    for asset_id in list(forgotten.values_list("pk", flat=True)[:DELETIONS_A_SWEEP]):
        with transaction.atomic():
            # Checked again under the lock: a part may just have arrived.
            if forgotten.select_for_update(no_key=True).filter(pk=asset_id).exists():
                delete_asset(asset_id, actor=ACTOR, now=now, reason="never finished")
                given_up += 1
    return given_up


def sweep_deleted(*, now: datetime) -> int:
    num_removed = 0
    for _ in range(DELETIONS_A_SWEEP):
        asset = _claim(now)
        if asset is None:
            break
        row = Asset.objects.filter(pk=asset.pk, state=AssetState.DELETING)
        if asset.ready_at is not None and assets_in_use([asset.pk]):  # submitted before the mark was visible
            row.update(state=AssetState.READY, next_sweep_at=None)
            continue
        try:
            row.update(ready_at=None)  # irreversible from here
            if asset.origin == AssetOrigin.UPLOADED and not remove_bytes(asset):
                row.update(next_sweep_at=now)  # more is left; other assets come first
                break
        except (OSError, StoreError) as error:
            log.warning("bytes not removed, will retry asset=%s: %s", asset.pk, error)
            continue
        with transaction.atomic():
            num_removed += row.update(state=AssetState.DELETED, deleted_at=now, next_sweep_at=None, project=None)
            asset.files.all().delete()  # the listing is obsolete, and most of the rows
    return num_removed


def _claim(now: datetime) -> Asset | None:
    with transaction.atomic():
        due = Asset.objects.filter(state=AssetState.DELETING, next_sweep_at__lte=now).order_by(F("next_sweep_at"), "pk")
        asset = due.select_for_update(skip_locked=True, no_key=True).first()
        if asset is not None:
            Asset.objects.filter(pk=asset.pk).update(next_sweep_at=now + CLAIM_LASTS)
        return asset
