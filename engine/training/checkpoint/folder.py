"""Checkpoint folders: parts, and a manifest that is written last.

    model.safetensors   optimizer.safetensors   trainer.json   config.json …   then manifest.json

Invariants:
- a part is written under a temporary name, synced, read back from the disk, renamed, and only then listed in the
  manifest with size and sha256; the writer's hash must equal the hash read back;
- a folder has no manifest while it is being written, so a crash at any point leaves no folder that verifies;
- a rank reads and hashes every part before it loads one. To choose a checkpoint, the manifest is read and each part's
  presence and size are checked;
- a folder whose other parts are on other hosts or in a store has the file `parts-elsewhere` before it has a manifest;
  then only the parts present are verified.
"""

import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final
from uuid import uuid4

from pydantic import ValidationError

from engine.policy.progress import SLOWEST_SYNC_S
from engine.process.progress import working
from engine.spec.checkpoint_manifest import MANIFEST_FILE as MANIFEST_FILE
from engine.spec.checkpoint_manifest import CheckpointManifest, CheckpointPart

ELSEWHERE_FILE: Final = "parts-elsewhere"

_READ_BYTES: Final = 2**20
_SYNC_BYTES: Final = 256 * 2**20
# One thread hashes 1.6 GB/s; a fast disk reads several times as much.
_HASHERS: Final = 4

WritePart = Callable[[Path], object]
"""Writes a file. A writer that hashes while writing returns the `CheckpointPart`."""


class CheckpointUnverified(Exception):
    """The folder is not a complete checkpoint."""

    retryable = False  # a retry reads the same bytes: choose an older checkpoint

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__)


def write_checkpoint(folder: Path, parts: Mapping[str, WritePart]) -> str:
    """Returns the manifest's sha256."""
    begin_checkpoint(folder)
    return end_checkpoint(folder, {name: write_part(folder, name, write) for name, write in parts.items()})


def begin_checkpoint(folder: Path) -> None:
    """Invalidates any earlier checkpoint in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MANIFEST_FILE, ELSEWHERE_FILE):
        (folder / name).unlink(missing_ok=True)
    _sync(folder)


def write_part(folder: Path, name: str, write: WritePart) -> CheckpointPart:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    try:
        written = write(partial)
        _sync(partial)
        part = _describe([partial])[0].result()
        if isinstance(written, CheckpointPart) and written != part:
            raise CheckpointUnverified(f"{folder}: {name} reads back with other bytes than were written")
        partial.rename(file)
    except BaseException:
        partial.unlink(missing_ok=True)  # frees room on a full disk
        raise
    _sync(file.parent)
    return part


def end_checkpoint(folder: Path, parts: Mapping[str, CheckpointPart]) -> str:
    """Writes the manifest and returns its sha256."""
    if not all((folder / name).exists() for name in parts):
        note_elsewhere(folder)
    _sync(folder)
    content = CheckpointManifest(parts=dict(parts)).model_dump_json(indent=2).encode()
    partial = folder / f".{MANIFEST_FILE}.partial"
    partial.write_bytes(content)
    _sync(partial)
    partial.rename(folder / MANIFEST_FILE)
    _sync(folder)
    return hashlib.sha256(content).hexdigest()


def note_elsewhere(folder: Path) -> None:
    """Marks a folder that lacks parts. The file holds a random id, by which ranks see whether they share the folder."""
    with suppress(FileExistsError), (folder / ELSEWHERE_FILE).open("x") as stream:
        stream.write(uuid4().hex)


def survey_checkpoint(folder: Path) -> str:
    """Checks that the parts are present with their sizes, without reading them. Returns the manifest's sha256."""
    digest, parts = read_manifest(folder)
    for name in local_parts(folder, parts):
        try:
            num_bytes = (folder / name).stat().st_size
        except OSError as error:
            raise CheckpointUnverified(f"{folder}: {name} cannot be read: {error.strerror}") from error
        if num_bytes != parts[name].num_bytes:
            raise CheckpointUnverified(
                f"{folder}: {name} has {num_bytes} bytes, the manifest lists {parts[name].num_bytes}"
            )
    return digest


def verify_checkpoint(folder: Path) -> str:
    """Reads and checks every part. Returns the manifest's sha256."""
    digest, parts = read_manifest(folder)
    verify_parts(folder, {name: parts[name] for name in local_parts(folder, parts)})
    return digest


def local_parts(folder: Path, parts: Iterable[str]) -> list[str]:
    """The parts in this folder: all, unless others are elsewhere."""
    is_partial = (folder / ELSEWHERE_FILE).exists()
    return [name for name in parts if not is_partial or (folder / name).exists()]


def read_manifest(folder: Path) -> tuple[str, dict[str, CheckpointPart]]:
    """Returns the manifest's sha256 and its parts."""
    content = _read_manifest(folder)
    return hashlib.sha256(content).hexdigest(), dict(_parse(folder, content).parts)


def verify_parts(folder: Path, parts: Mapping[str, CheckpointPart]) -> None:
    described = _describe([folder / name for name in parts])
    for (name, part), describing in zip(parts.items(), described, strict=True):
        try:
            actual = describing.result()
        except OSError as error:
            raise CheckpointUnverified(f"{folder}: {name} cannot be read: {error.strerror}") from error
        if actual != part:
            raise CheckpointUnverified(
                f"{folder}: {name} has {actual.num_bytes} bytes with sha256 {actual.sha256[:12]}…, the manifest lists "
                f"{part.num_bytes} with {part.sha256[:12]}…"
            )


def checkpoint_num_bytes(folder: Path) -> int:
    """The size of all parts by the manifest."""
    return sum(part.num_bytes for part in _parse(folder, _read_manifest(folder)).parts.values())


def _read_manifest(folder: Path) -> bytes:
    try:
        return (folder / MANIFEST_FILE).read_bytes()
    except OSError as error:
        raise CheckpointUnverified(f"{folder}: {MANIFEST_FILE} cannot be read: {error.strerror}") from error


def _parse(folder: Path, content: bytes) -> CheckpointManifest:
    try:
        return CheckpointManifest.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointUnverified(f"{folder}: {MANIFEST_FILE} is not a manifest: {error}") from error


def _describe(files: Sequence[Path]) -> list[Future[CheckpointPart]]:
    """Hashes files on several threads, since hashing releases the interpreter's lock; this thread reports progress."""
    progress: SimpleQueue[int] = SimpleQueue()
    with ThreadPoolExecutor(max_workers=_HASHERS, thread_name_prefix="checkpoint") as hashers:
        described = [hashers.submit(_hash, file, progress) for file in files]
        for each in described:
            each.add_done_callback(lambda _: progress.put(1))
        left = len(described)
        while left:
            with working("checkpoint"):
                left -= progress.get()
    return described


def _hash(file: Path, progress: SimpleQueue[int]) -> CheckpointPart:
    """`progress`: gets an entry for every block read."""
    digest, num_bytes = hashlib.sha256(), 0
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
            num_bytes += len(block)
            progress.put(0)
    return CheckpointPart(num_bytes=num_bytes, sha256=digest.hexdigest())


def _sync(path: Path) -> None:
    """Flushes a file's content, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _sync_pieces(path, os.fstat(handle).st_size)
        with working("sync", constant_s=SLOWEST_SYNC_S):
            os.fsync(handle)
        if path.is_file():  # drop the page cache: later reads come from the disk, and memory is freed
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _sync_pieces(path: Path, num_bytes: int) -> None:
    """Flushes a large file piece by piece before its `fsync`, which is one call without progress."""
    if num_bytes <= _SYNC_BYTES or not path.is_file():
        return
    with path.open("r+b") as file, mmap.mmap(file.fileno(), num_bytes) as pages:
        for start in range(0, num_bytes, _SYNC_BYTES):
            with working("sync", constant_s=SLOWEST_SYNC_S), suppress(OSError):  # `fsync` raises it too
                pages.flush(start, min(_SYNC_BYTES, num_bytes - start))
