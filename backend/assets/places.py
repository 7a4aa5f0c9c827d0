"""Locations of an asset's bytes.

    uploaded    assets/<asset>/<part>, in the store (folder or bucket)
    store       <place>/<file>, in the store, put there by the operator
    folder      models/<place> or data/<place>, in the shared folder, put there by the operator

Invariant: a key consists of generated ids or an operator's input, never of a tenant's.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from django.conf import settings

from backend.api.problems import Unavailable
from backend.assets.models import Asset, AssetFile, AssetKind, AssetOrigin, AssetPart
from backend.store.chosen import store
from backend.store.port import StoreError
from engine.spec.assets.asset_manifest import PART_BYTES

log = logging.getLogger(__name__)

PARTS_AT_ONCE: Final = 500  # a bucket takes about 10 ms for each, a background task has 45 s


def part_key(asset_id: str, stored_as: str) -> str:
    return f"assets/{asset_id}/{stored_as}"


def where_is(part: AssetPart) -> tuple[str, int]:
    """The part's object, and its offset there."""
    file, asset = part.file, part.file.asset
    if asset.origin == AssetOrigin.STORE:
        return f"{asset.place}/{file.name}", part.number * PART_BYTES
    return part_key(asset.pk, part.stored_as), 0


def shared_folder(kind: str) -> Path:
    """Both planes use these names."""
    return settings.ENVIRONMENT.store_dir / ("models" if kind == AssetKind.MODEL else "data")


def first_bytes(asset: Asset, file: AssetFile, wanted: range) -> bytes:
    """Bytes of an uploaded file's first part. Raises `StoreError`."""
    assert wanted.stop <= PART_BYTES, "only the first part is read"
    stored_as = file.parts.get(number=0).stored_as
    return store().get_range(part_key(asset.pk, stored_as), wanted.start, len(wanted))


def remove_bytes(asset: Asset) -> bool:
    """Deletes an upload's bytes for a few seconds; whether all are gone. Raises `StoreError`."""
    objects = list(islice(store().list(f"assets/{asset.pk}/"), PARTS_AT_ONCE + 1))
    for stored in objects[:PARTS_AT_ONCE]:
        store().delete(stored.key)
    return len(objects) <= PARTS_AT_ONCE


@contextmanager
def while_the_store_answers() -> Iterator[None]:
    """Maps store errors of a request to `Unavailable`. A retry continues from there."""
    try:
        yield
    except (StoreError, OSError) as error:  # a folder's disk is full, or away
        log.error("the store of assets: %s", error)
        raise Unavailable("The store is unavailable. Try again in a moment.") from error
