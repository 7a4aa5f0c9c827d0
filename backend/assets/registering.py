"""Registers files that an operator put into the folder or the store, for a team or all teams to name in specs.

    data/NAME      of the shared folder: a file of rows, or a folder of them
    models/NAME    of the shared folder: a folder in the Hugging Face layout
    PREFIX/FILE    of the bucket: either

Nothing is copied: nodes read the mounted folder, or use links. Unregistered files cannot be named.

Invariants:
- an entry is directly in its folder and has no files elsewhere, links included; a prefix is never one of Laminar's own;
- its hash is of its bytes at that moment; after a change of the bytes, register a new version.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from django.db import transaction

from backend.accounts.models import Team
from backend.assets.models import Asset, AssetFile, AssetKind, AssetOrigin, AssetPart, AssetState
from backend.assets.places import shared_folder
from backend.assets.storage import lock_storage
from backend.assets.uploads.contents import MOST_CONFIG_BYTES
from backend.assets.uploads.listing import CONFIG
from backend.assets.uploads.upload import next_version
from backend.audit.services import record_action
from backend.store.chosen import store
from engine.spec.assets.asset_manifest import PART_BYTES, AssetManifest, ManifestFile

OURS: Final = ("assets", "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceFile:
    name: str
    num_bytes: int
    read: Callable[[int, int], bytes]
    """(start, length) → bytes."""


def register_asset(
    *,
    team: Team | None,
    kind: str,
    name: str,
    place: str,
    is_stored: bool = False,
    now: datetime,
    on_file: Callable[[str], None] = lambda file: None,
) -> tuple[Asset, bool]:
    """The newest version, and whether it is new: unchanged files are already registered. `team` None: all teams.
    `is_stored`: the place is a prefix of the store. `on_file`: called with each file read. Raises `ValueError`,
    `StoreError`."""
    files = list(_list_store(place) if is_stored else _list_folder(kind, place))
    if not files:
        raise ValueError(f"place: {place} has no file")
    manifest = AssetManifest(files=[_hash_parts(file, on_file) for file in files])
    config = _read_config(files) if kind == AssetKind.MODEL else None
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
            origin=AssetOrigin.STORE if is_stored else AssetOrigin.FOLDER,
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
        _store_listing(asset, manifest)
        if team is not None:
            data = {"kind": kind, "name": name, "version": asset.version, "sha256": asset.sha256}
            record_action(
                team_id=team.pk, actor="operator", action="asset.registered", target=asset.pk, now=now, data=data
            )
    return asset, True


def entries_of(kind: str) -> list[str]:
    """Entries of the shared folder, registered or not."""
    folder = shared_folder(kind)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _list_folder(kind: str, place: str) -> Iterator[_SourceFile]:
    folder = shared_folder(kind)
    path = folder / place
    if Path(place).name != place or path.resolve().parent != folder.resolve():
        raise ValueError(f"place must be the name of a file or folder directly in {folder}, got {place!r}")
    if not path.exists():
        raise ValueError(f"place: {path} does not exist")
    within = [path]
    if path.is_dir():
        within = [each for each in sorted(path.iterdir()) if not each.name.startswith(".")]
        if any(each.resolve().parent != path.resolve() or not each.is_file() for each in within):
            raise ValueError(f"{path} must contain only files, without folders and links to elsewhere")
    for each in within:
        if each.stat().st_size:
            yield _SourceFile(name=each.name, num_bytes=each.stat().st_size, read=partial(_read_range, each))


def _list_store(prefix: str) -> Iterator[_SourceFile]:
    if prefix.partition("/")[0] in OURS:
        raise ValueError(f"place must be a prefix of your own, got {prefix!r}, which Laminar uses")
    for stored in store().list(f"{prefix}/"):
        read = partial(store().get_range, stored.key)
        yield _SourceFile(name=stored.key.removeprefix(f"{prefix}/"), num_bytes=stored.num_bytes, read=read)


def _read_range(file: Path, start: int, num_bytes: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(start)
        return opened.read(num_bytes)


def _hash_parts(file: _SourceFile, on_file: Callable[[str], None]) -> ManifestFile:
    on_file(file.name)
    starts = range(0, file.num_bytes, PART_BYTES)
    parts = [hashlib.sha256(file.read(start, PART_BYTES)).hexdigest() for start in starts]
    return ManifestFile(name=file.name, num_bytes=file.num_bytes, parts=parts)


def _read_config(files: Sequence[_SourceFile]) -> dict[str, Any]:
    config_file = next((file for file in files if file.name == CONFIG), None)
    if config_file is None or config_file.num_bytes > MOST_CONFIG_BYTES:
        raise ValueError(f"a model needs a {CONFIG} of at most {MOST_CONFIG_BYTES} bytes")
    config: dict[str, Any] = json.loads(config_file.read(0, config_file.num_bytes))
    return config


def _store_listing(asset: Asset, manifest: AssetManifest) -> None:
    for number, file in enumerate(manifest.files):
        row = AssetFile.objects.create(asset=asset, number=number, name=file.name, num_bytes=file.num_bytes)
        AssetPart.objects.bulk_create(
            [AssetPart(file=row, number=at, sha256=sha256) for at, sha256 in enumerate(file.parts)]
        )
