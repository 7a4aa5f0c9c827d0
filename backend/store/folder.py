"""The store in a local folder, or in a file system that all machines share.

    <root>/objects/<key>          whole objects only
    <root>/incoming/<random>      unfinished writes; a crash leaves a file only here

Invariant: an object appears by one rename after its bytes; `put` returns once folder and bytes are on disk.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from backend.store.port import NotStored, StoredObject, checked_key


class FolderStore:
    def __init__(self, root: Path) -> None:
        self._objects, self._incoming = root / "objects", root / "incoming"

    def put(self, key: str, content: bytes | Path) -> None:
        target = self._path(key)
        for folder in (self._incoming, target.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        handle, name = tempfile.mkstemp(dir=self._incoming)
        try:
            with os.fdopen(handle, "wb") as file:
                if isinstance(content, Path):
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, file, 1024 * 1024)
                else:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folders(target.parent, upto=self._objects)

    def get(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError) as error:
            raise NotStored(key) from error

    def get_range(self, key: str, start: int, num_bytes: int) -> bytes:
        try:
            with self._path(key).open("rb") as file:
                file.seek(start)
                return file.read(num_bytes)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise NotStored(key) from error

    def list(self, prefix: str) -> Iterator[StoredObject]:
        folder, _, _ = prefix.rpartition("/")
        top = self._path(folder) if folder else self._objects
        paths = {path.relative_to(self._objects).as_posix(): path for path in top.rglob("*") if path.is_file()}
        for key in sorted(paths):
            if key.startswith(prefix):
                yield StoredObject(key=key, num_bytes=paths[key].stat().st_size)

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def presigned_url(self, key: str, *, expires_in_s: int) -> str | None:
        return None

    def _path(self, key: str) -> Path:
        return self._objects / checked_key(key)


def _sync_folders(folder: Path, *, upto: Path) -> None:
    """A name is durable once its folder is synced; the folders above may be new too."""
    for each in (folder, *folder.parents):
        sync_folder(each)
        if each == upto:
            return


def sync_folder(folder: Path) -> None:
    """Makes new names and renames in the folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
