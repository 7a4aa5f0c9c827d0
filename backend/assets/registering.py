"""Registering what an operator put into the shared folder: from then on it is a team's, or everybody's, to name.

    <store>/data/NAME      a file of rows, or a folder of them
    <store>/models/NAME    a folder in the Hugging Face layout

Nothing is copied: nodes that mount the folder read it there. What is not registered is named by nobody.

Invariants:
- an entry lies directly in its folder, with nothing of it elsewhere, links followed;
- its hash is of its bytes at that moment; whoever changes them afterwards registers a new version.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db import transaction

from backend.accounts.models import Team
from backend.assets.contents import MOST_CONFIG_BYTES
from backend.assets.listing import CONFIG
from backend.assets.models import Asset, AssetFile, AssetKind, AssetOrigin, AssetPart, AssetState
from backend.assets.places import shared_folder
from backend.assets.storage import lock_storage
from backend.assets.uploading import next_version
from backend.audit.services import record_action
from engine.spec.asset_manifest import PART_BYTES, AssetManifest, ManifestFile


def register_asset(
    *,
    team: Team | None,
    kind: str,
    name: str,
    place: str,
    now: datetime,
    told: Callable[[str], None] = lambda file: None,
) -> tuple[Asset, bool]:
    """The newest version, and whether it is new: what has not changed since is registered already. `team`: None:
    everybody's. `told`: each file as it is read. Raises `ValueError`."""
    files = list(_files_of(shared_folder(kind), place))
    manifest = AssetManifest(files=[_hashed(file, told) for file in files])
    config = _config(files) if kind == AssetKind.MODEL else None
    with transaction.atomic():
        if team is not None:
            lock_storage(team.pk)
        same = Asset.objects.filter(team=team, kind=kind, name=name, place=place, state=AssetState.READY)
        known = same.filter(sha256=manifest.sha256).order_by("-version").first()
        if known is not None:
            return known, False
        asset = Asset.objects.create(
            team=team,
            kind=kind,
            name=name,
            version=next_version(team, kind, name, now=now),
            state=AssetState.READY,
            origin=AssetOrigin.FOLDER,
            place=place,
            num_bytes=manifest.num_bytes,
            num_files=len(manifest.files),
            num_parts=sum(len(file.parts) for file in manifest.files),
            sha256=manifest.sha256,
            config=config,
            created_at=now,
            created_by="operator",
            ready_at=now,
        )
        _list(asset, manifest)
        if team is not None:
            data = {"kind": kind, "name": name, "version": asset.version, "sha256": asset.sha256}
            record_action(
                team_id=team.pk, actor="operator", action="asset.registered", target=asset.pk, now=now, data=data
            )
    return asset, True


def entries_of(kind: str) -> list[str]:
    """What lies in the shared folder, registered or not."""
    folder = shared_folder(kind)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _files_of(folder: Path, place: str) -> Iterator[Path]:
    path = folder / place
    if Path(place).name != place or path.resolve().parent != folder.resolve():
        raise ValueError(f"place: the name of a file or of a folder directly in {folder}, got {place!r}")
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise ValueError(f"place: there is no {path}")
    found = [each for each in sorted(path.iterdir(), key=lambda each: each.name) if not each.name.startswith(".")]
    for each in found:
        if each.resolve().parent != path.resolve() or not each.is_file():
            raise ValueError(f"{each}: the files of {place} must be its own, with no folders or links to elsewhere")
    if not found:
        raise ValueError(f"place: {path} has no file")
    yield from (each for each in found if each.stat().st_size)


def _hashed(file: Path, told: Callable[[str], None]) -> ManifestFile:
    told(file.name)
    parts = []
    with file.open("rb") as opened:
        while content := opened.read(PART_BYTES):
            parts.append(hashlib.sha256(content).hexdigest())
    return ManifestFile(name=file.name, num_bytes=file.stat().st_size, parts=parts)


def _config(files: list[Path]) -> dict[str, Any]:
    found = next((file for file in files if file.name == CONFIG), None)
    if found is None or found.stat().st_size > MOST_CONFIG_BYTES:
        raise ValueError(f"a model needs a {CONFIG} of at most {MOST_CONFIG_BYTES} bytes")
    config: dict[str, Any] = json.loads(found.read_bytes())
    return config


def _list(asset: Asset, manifest: AssetManifest) -> None:
    for number, file in enumerate(manifest.files):
        row = AssetFile.objects.create(asset=asset, number=number, name=file.name, num_bytes=file.num_bytes)
        AssetPart.objects.bulk_create(
            [AssetPart(file=row, number=at, sha256=sha256) for at, sha256 in enumerate(file.parts)]
        )
