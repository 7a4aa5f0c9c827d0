"""Data sets and models of a team: list, upload in parts (see `uploading`), delete."""

from collections.abc import Mapping
from typing import Any

from ..answers.assets import Asset, AssetFile, Storage
from ..wire import Procedure, Stream, delete, get, octets, post
from .pages import answer, each_of, nothing


def each(*, kind: str | None = None, name: str | None = None, most: int | None = None) -> Stream[Asset]:
    """The team's and shared assets, newest first. `kind`: data or model."""
    return each_of(Asset, "assets", query={"kind": kind, "name": name}, most=most)


def show(asset_id: str) -> Procedure[Asset]:
    return (yield from answer(Asset, get("assets", asset_id)))


def files(asset_id: str) -> Stream[AssetFile]:
    """With the hash of each part; None for a part that has not arrived."""
    return each_of(AssetFile, "assets", asset_id, "files", query={})


def begin(kind: str, name: str, sizes: Mapping[str, int], *, project: str | None = None) -> Procedure[Asset]:
    """Begins an upload; the same listing under the same name resumes it."""
    listed = [{"name": file, "num_bytes": num_bytes} for file, num_bytes in sizes.items()]
    body: dict[str, Any] = {"kind": kind, "name": name, "files": listed}
    if project is not None:
        body["project"] = project
    return (yield from answer(Asset, post("assets", body=body, repeatable=True)))


def put_part(asset_id: str, file: int, part: int, content: bytes, *, sha256: str) -> Procedure[None]:
    where = ("assets", asset_id, "files", str(file), "parts", str(part))
    return (yield from nothing(octets(*where, content=content, query={"sha256": sha256})))


def complete(asset_id: str, *, num_bytes: int, sha256: str) -> Procedure[Asset]:
    body = {"num_bytes": num_bytes, "sha256": sha256}
    return (yield from answer(Asset, post("assets", asset_id, "complete", body=body, repeatable=True)))


def remove(asset_id: str) -> Procedure[None]:
    """Deletes an asset or cancels an upload."""
    return (yield from nothing(delete("assets", asset_id)))


def storage() -> Procedure[Storage]:
    return (yield from answer(Storage, get("storage")))
