"""Trainer hosts that may share no folder: each keeps the parts that its ranks wrote; the store has all parts.

    rank 0's host   LAMINAR_STORE_DIR/…/step-000050/   manifest.json   state-00001-of-00002   small files
    rank 1's host   LAMINAR_STORE_DIR/…/step-000050/                   state-00002-of-00002
    the store       …/step-000050/                     all parts

Invariants:
- a folder has the same path below LAMINAR_STORE_DIR on every host;
- a rank uploads the parts that it wrote; before it loads, it fetches only the parts that it needs and lacks; a part
  that several ranks of a host need is fetched by one of them;
- a damaged local copy of stored parts is deleted, and fetched again at the next load.
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
from engine.process.progress import report_progress
from engine.spec.checkpoint_manifest import MANIFEST_FILE, CheckpointManifest, CheckpointPart
from engine.training.checkpoint.folder import ELSEWHERE_FILE, CheckpointUnverified, note_elsewhere

_LOOK_UP_EVERY_S: Final = 0.2


class Needs(Protocol):
    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]:
        """`stored`: files → the names of their tensors. Returns the files that this rank needs."""


class Loads(Needs, Protocol):
    def load(self, folder: Path) -> None: ...


class HostFolders:
    """Maps rank 0's folders to this host's."""

    def __init__(self, root_of_first: Path | None) -> None:
        self._from, self._to = root_of_first, own_root()

    def here(self, folder: Path) -> Path:
        if self._from is None or self._to is None or not folder.is_relative_to(self._from):
            return folder
        return self._to / folder.relative_to(self._from)


def own_root() -> Path | None:
    try:
        return Settings.from_environment().store
    except ValueError:  # a run without a store: paths are not mapped
        return None


def make_mark(folder: Path) -> Path:
    """Creates a file by which other hosts check whether they see this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".seen-{uuid4().hex}"
    mark.touch()
    return mark


def upload_own(folder: Path, parts: Mapping[str, CheckpointPart]) -> None:
    """Uploads the parts if there is a store."""
    remote = RemoteCheckpoints.from_environment()
    if remote is not None:
        remote.store.upload_parts(folder, remote.key_of(folder), parts)


def address_of(folder: Path) -> str:
    """The store address of this folder, from which hosts fetch missing parts. Raises `ValueError` if there is none."""
    remote = RemoteCheckpoints.from_environment()
    if remote is None:
        raise ValueError(
            f"resume_from: parts of {folder} are on other hosts, and LAMINAR_STORE_URL names no store; resume from a "
            f"folder with all parts, or set LAMINAR_STORE_URL to the store that has them"
        )
    if not folder.resolve().is_relative_to(remote.root.resolve()):
        raise ValueError(
            f"resume_from: {folder} is outside of LAMINAR_STORE_DIR ({remote.root}), where the trainer's other hosts "
            f"cannot see it; resume from its s3 address, or share that folder between the hosts"
        )
    return remote.uri_of(folder)


def load_alone(holder: Loads, folder: Path) -> None:
    """Loads a checkpoint in a process without other ranks; fetches missing parts first."""
    with no_damaged_copy(folder):
        if is_elsewhere(folder):
            bring(holder, folder, address_of(folder), (folder / MANIFEST_FILE).read_bytes())
        holder.load(folder)


def is_elsewhere(folder: Path) -> bool:
    """Whether parts of this checkpoint may be missing here, since the store has them."""
    return (folder / ELSEWHERE_FILE).exists()


def bring(needs: Needs, folder: Path, uri: str, manifest: bytes) -> None:
    """Fetches the needed parts of the checkpoint at `uri` that this host's folder lacks; writes the manifest last."""
    remote = RemoteCheckpoints.from_environment()
    assert remote is not None, "ranks on hosts without a shared folder need a store"
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
        unfinished = folder / f".{MANIFEST_FILE}.{uuid4().hex}"
        unfinished.write_bytes(manifest)
        unfinished.rename(folder / MANIFEST_FILE)


@contextmanager
def _turn_at(folder: Path, number: int) -> Iterator[bool]:
    """Locks this part among the processes that see the folder; yields False after a short wait if another holds it."""
    with (folder / ELSEWHERE_FILE).open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)  # the kernel releases it with the process
        except BlockingIOError:
            report_progress()
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
