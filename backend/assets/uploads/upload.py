"""Uploads, from a listing to a complete asset, part by part, resumable after any interruption.

    begin(listing) ──▶ put_part(file, number, sha256, bytes) … ──▶ complete(size, sha256 of the manifest)

Invariants:
- every call is idempotent: the same listing under the same name is the same upload, the same part the same object, and
  completing a complete asset returns it again;
- a part counts only once its bytes are stored and match their hash; a part sent again with other bytes is a new object
  and replaces the old one, so a team never stores more than its listing;
- what is completed is what was looked into: every part is still the same object once the asset's row is locked. An
  object's name is never used again, so parts that were replaced and put back have other names.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Max

from backend.accounts.models import Project, Team
from backend.assets.models import Asset, AssetFile, AssetKind, AssetPart, AssetState
from backend.assets.places import part_key, while_the_store_answers
from backend.assets.selectors import UNKNOWN, incomplete_files, manifest_of, objects_of
from backend.assets.storage import lock_storage, refuse_beyond
from backend.assets.uploads.contents import look_into
from backend.assets.uploads.listing import ListedFile, refuse_listing
from backend.audit.services import record_action
from backend.checkpoints.registry.versions import number_for_upload
from backend.errors import Conflict, FieldError, Invalid, NotFound, Refusal
from backend.ids import new_id
from backend.store.chosen import store
from engine.spec.assets.asset_manifest import num_parts

KEPT_FOR: Final = timedelta(days=3)
"""An upload without a new part for this long is abandoned; covers a weekend."""
MOST_UPLOADS: Final = 50  # unfinished, per team; bounds the rows of their files
TOLD_FILES: Final = 20


class UploadUnderWay(Conflict):
    """Another upload of this name is in progress. Complete or delete it first."""

    code = "upload_under_way"


class TooManyUploads(Conflict):
    """Your team has too many unfinished uploads. Complete or delete some first."""

    code = "too_many_uploads"


class NotUploading(Conflict):
    """This asset is complete and can no longer be changed."""

    code = "not_uploading"


class PartsChanged(Conflict):
    """Parts were sent while this upload was being completed. Complete it again once all parts are sent."""

    code = "parts_changed"
    retryable = True


class Incomplete(Conflict):
    """Parts are missing. Send them, then complete the upload again."""

    code = "incomplete"


def begin_upload(
    *,
    team: Team,
    project: Project | None,
    kind: str,
    name: str,
    files: Sequence[ListedFile],
    actor: str,
    now: datetime,
) -> tuple[Asset, bool]:
    """The upload, and whether it is new. Raises `Invalid`, `UploadUnderWay`, `OverStorageQuota`."""
    refuse_listing(kind, files)
    listed = sorted((file.name, file.num_bytes) for file in files)
    with transaction.atomic():
        quota = lock_storage(team.pk)
        unfinished = Asset.objects.filter(team=team, state=AssetState.UPLOADING)
        under_way = unfinished.filter(kind=kind, name=name).select_for_update(no_key=True).first()
        if under_way is not None:
            is_same = listed == list(under_way.files.values_list("name", "num_bytes")) and under_way.project == project
            if not is_same:
                raise UploadUnderWay(asset=under_way.pk)
            Asset.objects.filter(pk=under_way.pk).update(expires_at=now + KEPT_FOR)
            return under_way, False
        if unfinished.count() >= MOST_UPLOADS:
            raise TooManyUploads()
        num_bytes = sum(size for _, size in listed)
        refuse_beyond(quota, team, num_bytes=num_bytes)
        asset = Asset.objects.create(
            team=team,
            project=project,
            kind=kind,
            name=name,
            num_bytes=num_bytes,
            num_files=len(listed),
            num_parts=sum(num_parts(size) for _, size in listed),
            created_at=now,
            created_by=actor,
            expires_at=now + KEPT_FOR,
        )
        AssetFile.objects.bulk_create(
            [AssetFile(asset=asset, number=at, name=each, num_bytes=size) for at, (each, size) in enumerate(listed)]
        )
        _record(asset, "asset.upload_begun", actor=actor, now=now)
    return asset, True


def put_part(file: AssetFile, number: int, content: bytes, *, sha256: str, now: datetime) -> None:
    """`content` must match `sha256`. Raises `NotUploading`, `NotFound`, `Unavailable`."""
    if AssetPart.objects.filter(file=file, number=number, sha256=sha256).exists():
        return
    stored_as = new_id("part")
    with while_the_store_answers():
        store().put(part_key(file.asset_id, stored_as), content)
    superseded = ""
    try:
        with transaction.atomic():
            locked_upload(file.asset_id)
            before = AssetPart.objects.filter(file=file, number=number).first()
            values = {"sha256": sha256, "stored_as": stored_as}
            AssetPart.objects.update_or_create(file=file, number=number, defaults=values)
            Asset.objects.filter(pk=file.asset_id).update(expires_at=now + KEPT_FOR)
        superseded = "" if before is None else before.stored_as
    except Refusal:  # after other errors the row may already refer to the object
        superseded = stored_as
        raise
    finally:
        if superseded:
            with while_the_store_answers():
                store().delete(part_key(file.asset_id, superseded))


def complete_upload(asset: Asset, *, num_bytes: int, sha256: str, actor: str, now: datetime) -> tuple[Asset, bool]:
    """The asset, and whether this call completed it. Raises `Incomplete`, `Invalid`, `NotFound`, `PartsChanged`,
    `Unavailable`."""
    if asset.state == AssetState.READY:
        if asset.sha256 != sha256:
            raise NotUploading()
        return asset, False
    objects = objects_of(asset)
    _refuse_unless_whole(asset, num_bytes=num_bytes, sha256=sha256)
    with while_the_store_answers():
        config = look_into(asset)  # takes a while, so no row is held
    with transaction.atomic():
        assert asset.team is not None, "registered assets are complete from the beginning"
        lock_storage(asset.team.pk)
        upload = locked_upload(asset.pk)
        if objects_of(upload) != objects:
            raise PartsChanged()
        upload.state, upload.sha256, upload.config = AssetState.READY, sha256, config
        upload.version = next_version(asset.team, upload.kind, upload.name, now=now)
        upload.ready_at, upload.expires_at = now, None
        upload.save()
        _record(upload, "asset.uploaded", actor=actor, now=now, sha256=sha256, version=upload.version)
    return upload, True


def next_version(team: Team | None, kind: str, name: str, *, now: datetime) -> int:
    """Call it under the team's lock. A team's uploaded and trained models share one sequence of numbers."""
    if kind == AssetKind.MODEL and team is not None:
        return number_for_upload(team, name, now=now)
    given = Asset.objects.filter(team=team, kind=kind, name=name).aggregate(last=Max("version"))["last"]
    return (given or 0) + 1


def locked_upload(asset_id: str) -> Asset:
    asset = Asset.objects.select_for_update(no_key=True).filter(pk=asset_id).first()
    if asset is not None and asset.state == AssetState.READY:
        raise NotUploading()
    if asset is None or asset.state != AssetState.UPLOADING:
        raise NotFound(UNKNOWN)
    return asset


def _refuse_unless_whole(asset: Asset, *, num_bytes: int, sha256: str) -> None:
    incomplete = incomplete_files(asset)
    if incomplete:
        raise Incomplete(
            f"{len(incomplete)} of {asset.num_files} files lack parts. Send them, then complete the upload again.",
            files=incomplete[:TOLD_FILES],
        )
    whole = manifest_of(asset)
    for field, given, actual in (("num_bytes", num_bytes, whole.num_bytes), ("sha256", sha256, whole.sha256)):
        if given != actual:
            message = f"must be {actual}, as of the files received; got {given}"
            raise Invalid(errors=[FieldError(pointer=f"/{field}", code="other_content", message=message)])


def _record(asset: Asset, action: str, *, actor: str, now: datetime, **data: Any) -> None:
    details = {"kind": asset.kind, "name": asset.name, "num_bytes": asset.num_bytes, **data}
    assert asset.team_id is not None, "of a team"
    record_action(team_id=asset.team_id, actor=actor, action=action, target=asset.pk, now=now, data=details)
