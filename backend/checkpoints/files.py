"""The files of a checkpoint, in a mounted folder or in a bucket.

    file:///store/jobs/<job>/attempt-1-fence-1/checkpoints/step-000050      parts under their names
    s3://bucket/prefix/jobs/<job>/attempt-1-fence-1/checkpoints/step-000050 parts under parts/<sha256>

Invariants:
- an address is accepted and followed only if it is the one place where the attempt may write that step, spelled the
  way the engine spells it: no attempt can have other files read, resumed from or deleted; links are not followed;
- nodes write these files: only regular ones are read, and of a manifest `MOST_MANIFEST_BYTES` at most;
- names come from a verified manifest, never from a request;
- removal deletes the manifest first, so a half-removed checkpoint does not look complete.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from django.conf import settings

from backend.checkpoints.models import Checkpoint
from backend.store.chosen import store
from backend.store.node_files import open_file, opened_folder, remove_folder
from backend.store.port import NotStored, ObjectStore, StoreError
from engine.spec.assets.store_address import StoreAddress
from engine.spec.checkpoint_manifest import (
    MANIFEST_FILE,
    PROGRESS_FOLDER,
    STORED_PARTS,
    CheckpointPart,
)

MOST_MANIFEST_BYTES: Final = 4 * 2**20
"""Some thirty thousand parts; a checkpoint has three and one for each rank."""
_READ_BYTES: Final = 4 * 2**20


class Elsewhere(Exception):
    """The files are not where this attempt may write this step."""


class MissingPart(Exception):
    """A part in the manifest is missing, or is no file that a checkpoint may have."""


class Unfinished(StoreError):
    """More files are left than one call removes. The next call continues."""

    retryable = True


class CheckpointFiles(Protocol):
    def manifest(self) -> bytes:
        """Raises `MissingPart`."""

    def chunks(self, name: str, part: CheckpointPart) -> Iterator[bytes]:
        """A part's bytes, in pieces. Raises `MissingPart`."""

    def num_bytes(self, name: str, part: CheckpointPart) -> int:
        """A part's size, without reading it. Raises `MissingPart`."""

    def url(self, part: CheckpointPart, *, expires_in_s: int) -> str | None:
        """A URL of the store for the part; None: only this site can serve it."""

    def remove(self) -> None:
        """Raises `Unfinished`."""


def own_key(uri: str, *, job: str, attempt: int, step: int) -> str:
    """The key in this site's store. Compared as text, so that no place has a second spelling. Raises `Elsewhere`."""
    tail = f"/checkpoints/step-{step:06d}"
    for jobs in _addresses_of_jobs():
        head = f"{jobs}/{job}/attempt-{attempt}-fence-"
        fence = uri.removeprefix(head).removesuffix(tail)
        if uri == f"{head}{fence}{tail}" and fence.isascii() and fence.isdecimal():
            return f"jobs/{uri.removeprefix(f'{jobs}/')}"
    raise Elsewhere(
        f"its address must be jobs/{job}/attempt-{attempt}-fence-N{tail} in LAMINAR_STORE_URL or LAMINAR_STORE_DIR, "
        f"which nodes and site share; got {uri}"
    )


def files_of(checkpoint: Checkpoint) -> CheckpointFiles:
    """Raises `Elsewhere`."""
    key = own_key(checkpoint.uri, job=checkpoint.job_id, attempt=checkpoint.attempt, step=checkpoint.step)
    if not checkpoint.uri.startswith("file:"):
        return StoredFiles(store(), key)
    return FolderFiles(_folder_of_jobs().resolve(), key.removeprefix("jobs/").split("/"))


def _addresses_of_jobs() -> Iterator[str]:
    """As the engine writes them: a folder is often mounted through a link, which the engine follows."""
    if settings.ENVIRONMENT.store_url:
        address = StoreAddress.read(settings.ENVIRONMENT.store_url)
        yield "/".join(filter(None, (f"s3://{address.bucket}", address.prefix, "jobs")))
    yield _folder_of_jobs().as_uri()
    yield _folder_of_jobs().resolve().as_uri()


def _whole_manifest(content: bytes) -> bytes:
    if len(content) > MOST_MANIFEST_BYTES:
        raise MissingPart(f"{MANIFEST_FILE} has more than {MOST_MANIFEST_BYTES:,} bytes")
    return content


def _folder_of_jobs() -> Path:
    store_dir: Path = settings.ENVIRONMENT.store_dir
    return store_dir.absolute() / "jobs"


class FolderFiles:
    def __init__(self, jobs: Path, names: Sequence[str]) -> None:
        """`jobs`: without links. `names`: of the folders below it, down to the checkpoint's."""
        folder = jobs.joinpath(*names)
        if folder.resolve() != folder:
            raise Elsewhere(f"{folder.name} is a link to another place")
        self._jobs, self._names = jobs, names

    def manifest(self) -> bytes:
        with self._open(MANIFEST_FILE) as file:
            return _whole_manifest(file.read(MOST_MANIFEST_BYTES + 1))

    def chunks(self, name: str, part: CheckpointPart) -> Iterator[bytes]:
        with self._open(name) as file:
            while piece := file.read(_READ_BYTES):
                yield piece

    def num_bytes(self, name: str, part: CheckpointPart) -> int:
        with self._open(name) as file:
            return os.fstat(file.fileno()).st_size

    def url(self, part: CheckpointPart, *, expires_in_s: int) -> str | None:
        return None

    def remove(self) -> None:
        *above, name = self._names
        try:
            with opened_folder(self._jobs, self._names) as folder, suppress(FileNotFoundError):
                os.unlink(MANIFEST_FILE, dir_fd=folder)
                os.fsync(folder)
            with opened_folder(self._jobs, above) as parent:
                if not remove_folder(parent, name):
                    raise Unfinished(f"{name} has more entries than one call removes")
                os.fsync(parent)
        except FileNotFoundError:
            return

    def _open(self, name: str) -> BinaryIO:
        try:
            return open_file(self._jobs, (*self._names, *name.split("/")))
        except OSError as error:
            raise MissingPart(f"{name} cannot be read: {error.strerror}") from error


class StoredFiles:
    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects, self._key = objects, key

    def manifest(self) -> bytes:
        try:
            return _whole_manifest(self._objects.get_range(f"{self._key}/{MANIFEST_FILE}", 0, MOST_MANIFEST_BYTES + 1))
        except NotStored as error:
            raise MissingPart(f"{MANIFEST_FILE} is not in the store") from error

    def chunks(self, name: str, part: CheckpointPart) -> Iterator[bytes]:
        for start in range(0, part.num_bytes, _READ_BYTES):
            try:
                piece = self._objects.get_range(self._part(part), start, min(_READ_BYTES, part.num_bytes - start))
            except NotStored as error:
                raise MissingPart(f"{name} is not in the store") from error
            if not piece:
                return
            yield piece

    def num_bytes(self, name: str, part: CheckpointPart) -> int:
        for stored in self._objects.list(self._part(part)):
            return stored.num_bytes
        raise MissingPart(f"{name} is not in the store")

    def url(self, part: CheckpointPart, *, expires_in_s: int) -> str | None:
        return self._objects.presigned_url(self._part(part), expires_in_s=expires_in_s)

    def remove(self) -> None:
        for manifest in (f"{self._key}/{MANIFEST_FILE}", f"{self._key}/{PROGRESS_FOLDER}/{MANIFEST_FILE}"):
            self._objects.delete(manifest)
        for stored in list(self._objects.list(f"{self._key}/")):
            self._objects.delete(stored.key)

    def _part(self, part: CheckpointPart) -> str:
        return f"{self._key}/{STORED_PARTS}/{part.sha256}"
