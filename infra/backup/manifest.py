"""The manifest of a backup. It is written last, so a backup with a manifest is complete."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from infra.backup.errors import BackupError

Root = Literal["store", "bucket", "site", "audit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    root: Root
    name: str
    num_bytes: int
    sha256: str
    stamp: str
    """Of the version that was read: a file with the same is not read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    id: str
    began_at: str
    finished_at: str
    """From here on the base can be recovered."""
    era: str
    """The folder of wal/ that continues from this base: one server, one timeline."""
    first_segment: str
    """The first segment in that folder that this base needs."""
    base_sha256: str
    """Of base/backup_manifest, which has those of its files."""
    files_sha256: str
    num_files: int
    num_bytes: int

    @classmethod
    def read(cls, path: Path) -> Self:
        fields: dict[str, Any] = json.loads(path.read_text())
        return cls(**fields)

    @property
    def finished(self) -> datetime:
        return datetime.fromisoformat(self.finished_at)

    def write(self, path: Path) -> None:
        write_durably(path, json.dumps(asdict(self), indent=1).encode())


def write_files(path: Path, files: list[SavedFile]) -> str:
    """Their sha256, all together."""
    content = b"".join(json.dumps(asdict(file), separators=(",", ":")).encode() + b"\n" for file in files)
    write_durably(path, content)
    return hashlib.sha256(content).hexdigest()


def read_files(path: Path, *, sha256: str) -> list[SavedFile]:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BackupError(f"{path} is damaged; take another backup (`list` shows all)")
    return list(_files_in(content))


def _files_in(content: bytes) -> Iterator[SavedFile]:
    for line in content.splitlines():
        yield SavedFile(**json.loads(line))


def write_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Whole or absent."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
