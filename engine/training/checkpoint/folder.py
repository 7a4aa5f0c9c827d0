"""A checkpoint is a folder whose manifest was written last.

    model.safetensors   optimizer.safetensors   trainer.json   config.json …   then manifest.json

Invariants:
- a part is written under another name, synced, read back from the disk, renamed, and only then named in the manifest
  with size and sha256; what its writer hashed must be what was read;
- while a folder is being written it has no manifest, so a crash at any point leaves no folder that verifies;
- nothing is loaded that was not read back before, by a rank that loads: whoever only decides which checkpoint it is
  reads the manifest, and looks whether each part is there and has its size;
- a folder of several hosts that do not share it, or of which a store has the rest, has the file `parts-elsewhere`
  before it has a manifest: then what is here is what verifies.
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
from engine.signs import at_work
from engine.spec.checkpoint_manifest import MANIFEST_FILE as MANIFEST_FILE
from engine.spec.checkpoint_manifest import CheckpointManifest, CheckpointPart

ELSEWHERE_FILE: Final = "parts-elsewhere"

_READ_BYTES: Final = 2**20
_SYNC_BYTES: Final = 256 * 2**20
# One takes 1.6 GB/s, of which a fast disk has several times as much.
_HASHERS: Final = 4

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
        found = _describe([partial])[0].result()
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
    """Of this folder's parts some are. The file says which folder it is, to ranks that may see one or several."""
    with suppress(FileExistsError), (folder / ELSEWHERE_FILE).open("x") as stream:
        stream.write(uuid4().hex)


def survey_checkpoint(folder: Path) -> str:
    """The manifest's sha256, of a folder whose parts are there with their sizes. What is in them nobody has read."""
    digest, parts = read_manifest(folder)
    for name in parts_here(folder, parts):
        try:
            num_bytes = (folder / name).stat().st_size
        except OSError as error:
            raise CheckpointUnverified(f"{folder}: {name} cannot be read: {error.strerror}") from error
        if num_bytes != parts[name].num_bytes:
            raise CheckpointUnverified(
                f"{folder}: {name} has {num_bytes} bytes, the manifest says {parts[name].num_bytes}"
            )
    return digest


def verify_checkpoint(folder: Path) -> str:
    """The manifest's sha256, once every part has been read back."""
    digest, parts = read_manifest(folder)
    verify_parts(folder, {name: parts[name] for name in parts_here(folder, parts)})
    return digest


def parts_here(folder: Path, parts: Iterable[str]) -> list[str]:
    """All of them, unless other hosts have some."""
    is_partial = (folder / ELSEWHERE_FILE).exists()
    return [name for name in parts if not is_partial or (folder / name).exists()]


def read_manifest(folder: Path) -> tuple[str, dict[str, CheckpointPart]]:
    """Its sha256, and the parts as it has them."""
    content = _manifest_bytes(folder)
    return hashlib.sha256(content).hexdigest(), dict(_parse(folder, content).parts)


def verify_parts(folder: Path, parts: Mapping[str, CheckpointPart]) -> None:
    described = _describe([folder / name for name in parts])
    for (name, part), describing in zip(parts.items(), described, strict=True):
        try:
            found = describing.result()
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


def _describe(files: Sequence[Path]) -> list[Future[CheckpointPart]]:
    """What is in them, by several threads, since hashing lets the interpreter's lock go; this one gives the signs."""
    told: SimpleQueue[int] = SimpleQueue()
    with ThreadPoolExecutor(max_workers=_HASHERS, thread_name_prefix="checkpoint") as hashers:
        described = [hashers.submit(_read, file, told) for file in files]
        for each in described:
            each.add_done_callback(lambda _: told.put(1))
        left = len(described)
        while left:
            with at_work("checkpoint"):
                left -= told.get()
    return described


def _read(file: Path, told: SimpleQueue[int]) -> CheckpointPart:
    """`told`: of every block that was read."""
    digest, num_bytes = hashlib.sha256(), 0
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
            num_bytes += len(block)
            told.put(0)
    return CheckpointPart(num_bytes=num_bytes, sha256=digest.hexdigest())


def _sync(path: Path) -> None:
    """Puts onto disk what was written to a file, or the names that a folder has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _sync_pieces(path, os.fstat(handle).st_size)
        with at_work("sync", constant_s=SLOWEST_SYNC_S):
            os.fsync(handle)
        if path.is_file():  # from here on it is read from the disk, and memory is free for others
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _sync_pieces(path: Path, num_bytes: int) -> None:
    """What a file has, before its `fsync`: that is one call without progress."""
    if num_bytes <= _SYNC_BYTES or not path.is_file():
        return
    with path.open("r+b") as file, mmap.mmap(file.fileno(), num_bytes) as pages:
        for start in range(0, num_bytes, _SYNC_BYTES):
            with at_work("sync", constant_s=SLOWEST_SYNC_S), suppress(OSError):  # which `fsync` will meet as well
                pages.flush(start, min(_SYNC_BYTES, num_bytes - start))
