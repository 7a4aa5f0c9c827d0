"""Where the bytes of an asset lie.

    uploaded    assets/<asset>/<part>, in the store, whichever it is
    store       <place>/<file>, in the store, as the operator put it there
    folder      models/<place> or data/<place>, in the shared folder, as the operator put it there

Invariant: a key is made of ids of ours, or of what an operator said, and of nothing that a tenant chose.
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
from engine.spec.asset_manifest import PART_BYTES

log = logging.getLogger(__name__)

PARTS_AT_ONCE: Final = 500  # a bucket takes about 10 ms for each, a background task has 45 s


def part_key(asset_id: str, stored_as: str) -> str:
    return f"assets/{asset_id}/{stored_as}"


def where_is(part: AssetPart) -> tuple[str, int]:
    """Its object, and from which byte on."""
    file, asset = part.file, part.file.asset
    if asset.origin == AssetOrigin.STORE:
        return f"{asset.place}/{file.name}", part.number * PART_BYTES
    return part_key(asset.pk, part.stored_as), 0


def shared_folder(kind: str) -> Path:
    """Both planes know it by this name."""
    return settings.ENVIRONMENT.store_dir / ("models" if kind == AssetKind.MODEL else "data")


def first_bytes(asset: Asset, file: AssetFile, wanted: range) -> bytes:
    """Of an uploaded file, and of its first part. Raises `StoreError`."""
    assert wanted.stop <= PART_BYTES, "what is looked at stands in the first part"
    stored_as = file.parts.get(number=0).stored_as
    return store().get_range(part_key(asset.pk, stored_as), wanted.start, len(wanted))


def remove_bytes(asset: Asset) -> bool:
    """Of an upload, as many as take seconds; whether they were all. Raises `StoreError`."""
    found = list(islice(store().list(f"assets/{asset.pk}/"), PARTS_AT_ONCE + 1))
    for stored in found[:PARTS_AT_ONCE]:
        store().delete(stored.key)
    return len(found) <= PARTS_AT_ONCE


@contextmanager
def while_the_store_answers() -> Iterator[None]:
    """For a request. Raises `Unavailable`: what is asked again later goes on from here."""
    try:
        yield
    except (StoreError, OSError) as error:  # a folder's disk is full, or away
        log.error("the store of assets: %s", error)
        raise Unavailable("The store does not take or give this right now; send it again in a moment.") from error
