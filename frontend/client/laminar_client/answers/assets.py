"""Data sets and models of a team, uploaded or shared."""

from datetime import datetime

from .record import Answer, Named, record


@record
class Asset(Named):
    kind: str
    version: int | None
    reference: str | None
    state: str
    project: str | None
    is_shared: bool
    num_bytes: int
    num_files: int
    num_parts: int
    received_parts: int
    sha256: str | None
    created_at: datetime
    created_by: str
    ready_at: datetime | None
    expires_at: datetime | None


@record
class AssetFile(Answer):
    number: int
    name: str
    num_bytes: int
    parts: list[str | None]


@record
class Storage(Answer):
    used_bytes: int
    max_bytes: int
