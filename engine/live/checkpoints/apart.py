"""Hosts of one trainer that may share no folder: each keeps what its ranks wrote, and the store has everything.

    rank 0's host   LAMINAR_STORE_DIR/…/step-000050/   manifest.json   state-00001-of-00002   small files
    rank 1's host   LAMINAR_STORE_DIR/…/step-000050/                   state-00002-of-00002
    the store       …/step-000050/                     all of it

Invariants:
- a folder has one name below every host's LAMINAR_STORE_DIR, wherever that is;
- a rank uploads what it wrote; before it loads, it fetches what it needs and does not have, and nothing else; what
  several ranks of a host need, one of them fetches;
- a copy of what a store has is thrown away if it is damaged: the next time it is fetched anew.
"""

import fcntl
import shutil
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

from engine.live.checkpoints.store import FETCHED, RemoteCheckpoints
from engine.live.process.settings import Settings
from engine.signs import still_here
from engine.spec.checkpoint_manifest import MANIFEST_FILE, CheckpointManifest, CheckpointPart
from engine.training.checkpoint.folder import ELSEWHERE_FILE, CheckpointUnverified, note_elsewhere

_LOOK_UP_EVERY_S: Final = 0.2


class Needs(Protocol):
    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]:
        """Of files and the names of the tensors in them."""


class Loads(Needs, Protocol):
    def load(self, folder: Path) -> None: ...


class HostFolders:
    """The way from the folders that rank 0 names to those of this host."""

    def __init__(self, root_of_first: Path | None) -> None:
        self._from, self._to = root_of_first, own_root()

    def here(self, folder: Path) -> Path:
        if self._from is None or self._to is None or not folder.is_relative_to(self._from):
            return folder
        return self._to / folder.relative_to(self._from)


def own_root() -> Path | None:
    try:
        return Settings.from_environment().store
    except ValueError:  # a run without a store: paths are as they are
        return None


def make_mark(folder: Path) -> Path:
    """A file by which other hosts tell whether they see this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".seen-{uuid4().hex}"
    mark.touch()
    return mark


def upload_own(folder: Path, parts: Mapping[str, CheckpointPart]) -> None:
    """Where there is a store."""
    remote = RemoteCheckpoints.from_environment()
    if remote is not None:
        remote.store.upload_parts(folder, remote.key_of(folder), parts)


def address_of(folder: Path) -> str:
    """Where other hosts find what is in this one, and this one what it lacks. Raises `ValueError`."""
    remote = RemoteCheckpoints.from_environment()
    if remote is None:
        raise ValueError(
            f"resume_from: some of {folder} is on other hosts, and LAMINAR_STORE_URL names no store that has it; go on "
            f"from a folder with all of it"
        )
    if not folder.resolve().is_relative_to(remote.root.resolve()):
        raise ValueError(
            f"resume_from: {folder} is outside of LAMINAR_STORE_DIR ({remote.root}), where the trainer's other hosts "
            f"cannot see it; go on from its s3 address, or have them share that folder"
        )
    return remote.uri_of(folder)


def load_alone(holder: Loads, folder: Path) -> None:
    """By a process that knows no other ranks. What is not here is fetched before."""
    with no_damaged_copy(folder):
        if is_elsewhere(folder):
            bring(holder, folder, address_of(folder), (folder / MANIFEST_FILE).read_bytes())
        holder.load(folder)


def is_elsewhere(folder: Path) -> bool:
    """Some of it."""
    return (folder / ELSEWHERE_FILE).exists()


def bring(needs: Needs, folder: Path, uri: str, manifest: bytes) -> None:
    """Of the checkpoint at `uri` what is not in this host's folder, and the manifest last."""
    remote = RemoteCheckpoints.from_environment()
    assert remote is not None, "ranks are apart, and nobody has refused it"
    parts = CheckpointManifest.model_validate_json(manifest).parts
    missing = {name: part for name, part in parts.items() if not _is_here(folder / name, part)}
    tensors = {name for name in missing if name.endswith(".safetensors") and "/" not in name}
    needed = needs.files_needed({name: remote.store.tensor_names(uri, parts[name]) for name in sorted(tensors)})
    folder.mkdir(parents=True, exist_ok=True)
    note_elsewhere(folder)
    left = deque([*sorted(missing.keys() - tensors), *needed])
    while left:
        name = left.popleft()
        with _turn_at(folder, sorted(parts).index(name)) as is_mine:
            if not is_mine:
                left.append(name)
            elif not _is_here(folder / name, parts[name]):
                remote.store.fetch_parts(uri, {name: parts[name]}, folder)
    if not (folder / MANIFEST_FILE).exists():
        brought = folder / f".{MANIFEST_FILE}.{uuid4().hex}"
        brought.write_bytes(manifest)
        brought.rename(folder / MANIFEST_FILE)


@contextmanager
def _turn_at(folder: Path, number: int) -> Iterator[bool]:
    """Whether it is this process that fetches this part, of those that see the folder. Waits a little if not."""
    with (folder / ELSEWHERE_FILE).open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)  # the system's, so it ends with its process
        except BlockingIOError:
            still_here()
            time.sleep(_LOOK_UP_EVERY_S)
            yield False
        else:
            yield True


@contextmanager
def no_damaged_copy(folder: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointUnverified:
        root = own_root()
        if root is not None and folder.is_relative_to(root / FETCHED):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _is_here(file: Path, part: CheckpointPart) -> bool:
    return file.exists() and file.stat().st_size == part.num_bytes
