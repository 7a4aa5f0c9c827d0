"""A checkpoint is a folder whose manifest was written last.

    model.safetensors   optimizer.safetensors   trainer.json   config.json …   then manifest.json

Invariants:
- a part is written under another name, synced, renamed, and only then named in the manifest with size and sha256;
- while a folder is being written it has no manifest, so a crash at any point leaves no folder that verifies;
- nothing is loaded from a folder that does not verify.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from engine.signs import at_work
from engine.spec.checkpoint_manifest import MANIFEST_FILE as MANIFEST_FILE
from engine.spec.checkpoint_manifest import CheckpointManifest, CheckpointPart

_READ_BYTES: Final = 2**20

WritePart = Callable[[Path], None]


class CheckpointUnverified(Exception):
    """The folder is not a whole checkpoint."""

    retryable = False  # the bytes do not repair themselves: choose an older checkpoint

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__)


def write_checkpoint(folder: Path, parts: Mapping[str, WritePart]) -> str:
    """The manifest's sha256. A checkpoint that was here before is gone from the first byte on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    _sync(folder)
    described: dict[str, CheckpointPart] = {}
    for name, write in parts.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        partial = file.with_name(f".{file.name}.partial")
        write(partial)
        _sync(partial)
        described[name] = _describe(partial)
        partial.rename(file)
    for written in {folder, *((folder / name).parent for name in parts)}:
        _sync(written)
    content = CheckpointManifest(parts=described).model_dump_json(indent=2).encode()
    partial = folder / f".{MANIFEST_FILE}.partial"
    partial.write_bytes(content)
    _sync(partial)
    partial.rename(folder / MANIFEST_FILE)
    _sync(folder)
    return hashlib.sha256(content).hexdigest()


def verify_checkpoint(folder: Path) -> str:
    """The manifest's sha256, once every part has been read back."""
    content = _manifest_bytes(folder)
    for name, part in _parse(folder, content).parts.items():
        try:
            found = _describe(folder / name)
        except OSError as error:
            raise CheckpointUnverified(f"{folder}: {name} cannot be read: {error.strerror}") from error
        if found != part:
            raise CheckpointUnverified(
                f"{folder}: {name} has {found.num_bytes} bytes with sha256 {found.sha256[:12]}…, the manifest says "
                f"{part.num_bytes} with {part.sha256[:12]}…"
            )
    return hashlib.sha256(content).hexdigest()


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
    finally:
        os.close(handle)
