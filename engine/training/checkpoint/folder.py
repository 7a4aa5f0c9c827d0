"""A checkpoint is a folder whose manifest was written last.

    model.safetensors   optimizer.safetensors   trainer.json   config.json …   then manifest.json

Invariants:
- a part is written under another name, synced, read back from the disk, renamed, and only then named in the manifest
  with size and sha256; what its writer hashed must be what was read;
- while a folder is being written it has no manifest, so a crash at any point leaves no folder that verifies;
- nothing is loaded from a folder that does not verify;
- a folder of several hosts that do not share it has the file `parts-elsewhere` before it has a manifest: then what is
  here is what verifies, and a store has the rest.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from engine.signs import at_work
from engine.spec.checkpoint_manifest import MANIFEST_FILE as MANIFEST_FILE
from engine.spec.checkpoint_manifest import CheckpointManifest, CheckpointPart

ELSEWHERE_FILE: Final = "parts-elsewhere"

_READ_BYTES: Final = 2**20

WritePart = Callable[[Path], object]
"""A writer that hashes what it writes answers with the `CheckpointPart`."""


class CheckpointUnverified(Exception):
    """The folder is not a whole checkpoint."""

    retryable = False  # the bytes do not repair themselves: choose an older checkpoint

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__)


def write_checkpoint(folder: Path, parts: Mapping[str, WritePart]) -> str:
    """The manifest's sha256."""
    begin_checkpoint(folder)
    return end_checkpoint(folder, {name: write_part(folder, name, write) for name, write in parts.items()})


def begin_checkpoint(folder: Path) -> None:
    """A checkpoint that was here before is gone from here on."""
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
        found = _describe(partial)
        if isinstance(written, CheckpointPart) and written != found:
            raise CheckpointUnverified(f"{folder}: {name} was written and reads back as something else")
        partial.rename(file)
    except BaseException:
        partial.unlink(missing_ok=True)  # on a full disk, room for what comes next
        raise
    _sync(file.parent)
    return found


def end_checkpoint(folder: Path, parts: Mapping[str, CheckpointPart]) -> str:
    """The manifest's sha256."""
    if not all((folder / name).exists() for name in parts):
        (folder / ELSEWHERE_FILE).touch()
    _sync(folder)
    content = CheckpointManifest(parts=dict(parts)).model_dump_json(indent=2).encode()
    partial = folder / f".{MANIFEST_FILE}.partial"
    partial.write_bytes(content)
    _sync(partial)
    partial.rename(folder / MANIFEST_FILE)
    _sync(folder)
    return hashlib.sha256(content).hexdigest()


def verify_checkpoint(folder: Path) -> str:
    """The manifest's sha256, once every part has been read back."""
    digest, parts = read_manifest(folder)
    for name in parts_here(folder, parts):
        verify_part(folder, name, parts[name])
    return digest


def parts_here(folder: Path, parts: Iterable[str]) -> list[str]:
    """All of them, unless other hosts have some."""
    is_partial = (folder / ELSEWHERE_FILE).exists()
    return [name for name in parts if not is_partial or (folder / name).exists()]


def read_manifest(folder: Path) -> tuple[str, dict[str, CheckpointPart]]:
    """Its sha256, and the parts as it has them."""
    content = _manifest_bytes(folder)
    return hashlib.sha256(content).hexdigest(), dict(_parse(folder, content).parts)


def verify_part(folder: Path, name: str, part: CheckpointPart) -> None:
    try:
        found = _describe(folder / name)
    except OSError as error:
        raise CheckpointUnverified(f"{folder}: {name} cannot be read: {error.strerror}") from error
    if found != part:
        raise CheckpointUnverified(
            f"{folder}: {name} has {found.num_bytes} bytes with sha256 {found.sha256[:12]}…, the manifest says "
            f"{part.num_bytes} with {part.sha256[:12]}…"
        )


def checkpoint_num_bytes(folder: Path) -> int:
    """Of all parts, as the manifest has them."""
    return sum(part.num_bytes for part in _parse(folder, _manifest_bytes(folder)).parts.values())


def _manifest_bytes(folder: Path) -> bytes:
    try:
        return (folder / MANIFEST_FILE).read_bytes()
    except OSError as error:
        raise CheckpointUnverified(f"{folder}: {MANIFEST_FILE} cannot be read: {error.strerror}") from error


def _parse(folder: Path, content: bytes) -> CheckpointManifest:
    try:
        return CheckpointManifest.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointUnverified(f"{folder}: {MANIFEST_FILE} is not a manifest: {error}") from error


def _describe(file: Path) -> CheckpointPart:
    digest = hashlib.sha256()
    num_bytes = 0
    with file.open("rb") as stream:
        is_over = False
        while not is_over:
            with at_work("checkpoint", num_bytes=_READ_BYTES):
                block = stream.read(_READ_BYTES)
                digest.update(block)
            num_bytes += len(block)
            is_over = not block
    return CheckpointPart(num_bytes=num_bytes, sha256=digest.hexdigest())


def _sync(path: Path) -> None:
    """Puts onto disk what was written to a file, or the names that a folder has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with at_work("sync", num_bytes=os.fstat(handle).st_size):
            os.fsync(handle)
        if path.is_file():  # from here on it is read from the disk, and memory is free for others
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
