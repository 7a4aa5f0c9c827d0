"""Files of an installation: the shared folder, the bucket, the site folder.

Invariants:
- what is there already is not copied again: a file of the size and stamp that an earlier backup noted is the same file,
  since checkpoints, data sets and models never change; objects are named by their content, so none is kept twice;
- a file that goes while it is looked for was not part of the installation any more;
- a restore adds what is missing and changes nothing that is there: a spool may know more by now than the backup.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from backend.store.port import NotStored, ObjectStore
from infra.backup.errors import BackupError
from infra.backup.manifest import Root, SavedFile, sha256_of, sync_folder
from infra.backup.repository import Repository
from infra.backup.source import Source

PIECE: Final = 4 * 2**20
TELL_EVERY_S: Final = 5.0
Tell = Callable[[str], None]

# What is fetched or made again, what is half written, and what must not be put back.
LEFT_OUT: Final[Mapping[Root, frozenset[str]]] = {
    "store": frozenset({"fetched", "incoming"}),
    "bucket": frozenset(),
    "site": frozenset({"static", "generation.json", "audit/signing_key.pem"}),
    "audit": frozenset({"signing_key.pem"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    name: str
    num_bytes: int
    stamp: str


class Contents(Protocol):
    root: Root

    def list(self) -> Iterator[Listed]: ...

    def read(self, name: str) -> Iterator[bytes]:
        """Raises `FileNotFoundError`."""

    def add(self, name: str, file: Path) -> None:
        """Of what is not there."""


class Folder:
    def __init__(self, root: Root, folder: Path, *, owner: int | None = None) -> None:
        """`owner`: of what is added."""
        self.root, self._folder, self._owner = root, folder, owner

    def list(self) -> Iterator[Listed]:
        for above, folders, names in os.walk(self._folder):
            here = Path(above).relative_to(self._folder)
            folders[:] = sorted(name for name in folders if str(here / name) not in LEFT_OUT[self.root])
            for name in sorted(names):
                found = self._folder / here / name
                if str(here / name) in LEFT_OUT[self.root] or found.is_symlink() or not found.is_file():
                    continue
                try:
                    about = found.stat()
                except FileNotFoundError:
                    continue
                yield Listed(name=str(here / name), num_bytes=about.st_size, stamp=str(about.st_mtime_ns))

    def read(self, name: str) -> Iterator[bytes]:
        with (self._folder / name).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    def add(self, name: str, file: Path) -> None:
        target = self._folder / name
        if self._folder not in target.parents or ".." in Path(name).parts:
            raise BackupError(f"{name!r} is not a file name in {self._folder}")
        self._make(target.parent)
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as draft, file.open("rb") as content:
            shutil.copyfileobj(content, draft, PIECE)
            draft.flush()
            os.fsync(draft.fileno())
        Path(draft.name).chmod(0o640)
        self._give(Path(draft.name))
        Path(draft.name).replace(target)
        sync_folder(target.parent)

    def _make(self, folder: Path) -> None:
        for each in reversed([folder, *folder.parents]):
            if not each.exists():
                each.mkdir()
                self._give(each)

    def _give(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, self._owner, self._owner)


class Bucket:
    root: Root = "bucket"

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def list(self) -> Iterator[Listed]:
        for found in self._objects.list(""):
            yield Listed(name=found.key, num_bytes=found.num_bytes, stamp="")

    def read(self, name: str) -> Iterator[bytes]:
        start = 0
        try:
            while piece := self._objects.get_range(name, start, PIECE):
                start += len(piece)
                yield piece
                if len(piece) < PIECE:
                    return
        except NotStored as error:
            raise FileNotFoundError(name) from error

    def add(self, name: str, file: Path) -> None:
        self._objects.put(name, file)


def contents_of(source: Source, *, owner: int | None = None) -> list[Contents]:
    found: list[Contents] = [Folder(name, folder, owner=owner) for name, folder in source.folders]
    return found if source.bucket is None else [*found, Bucket(source.bucket)]


def save_files(
    contents: Iterable[Contents], repository: Repository, known: Iterable[SavedFile], tell: Tell
) -> list[SavedFile]:
    before = {(file.root, file.name): file for file in known}
    saved: list[SavedFile] = []
    num_copied, told_at = 0, time.monotonic()
    for each in contents:
        for listed in each.list():
            same = before.get((each.root, listed.name))
            if same is None or (same.num_bytes, same.stamp) != (listed.num_bytes, listed.stamp):
                try:
                    same = _copied(each, listed, repository)
                except FileNotFoundError:
                    continue
                num_copied += 1
            saved.append(same)
            if time.monotonic() - told_at > TELL_EVERY_S:
                told_at = time.monotonic()
                tell(f"files: {len(saved)} so far, {num_copied} of them new")
    tell(f"files: {len(saved)}, {num_copied} of them new")
    return saved


def _copied(contents: Contents, listed: Listed, repository: Repository) -> SavedFile:
    digest, num_bytes = hashlib.sha256(), 0
    handle, draft = tempfile.mkstemp(dir=repository.folder / "objects", prefix=".making")
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in contents.read(listed.name):
                digest.update(piece)
                num_bytes += len(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        target = repository.object(digest.hexdigest())
        target.parent.mkdir(exist_ok=True, mode=0o700)
        Path(draft).replace(target)
        sync_folder(target.parent)
    finally:
        Path(draft).unlink(missing_ok=True)
    # Of one that grew meanwhile, as much as was read: the next backup sees another size.
    return SavedFile(
        root=contents.root, name=listed.name, num_bytes=num_bytes, sha256=digest.hexdigest(), stamp=listed.stamp
    )


def add_missing(files: Iterable[SavedFile], contents: Contents, repository: Repository, tell: Tell) -> int:
    """The number added. What is there stays as it is."""
    there = {listed.name for listed in contents.list()}
    wanted = {file.name: file for file in files if file.root == contents.root and file.name not in there}
    told_at = time.monotonic()
    for number, file in enumerate(wanted.values(), start=1):
        content = repository.object(file.sha256)
        if not content.is_file() or sha256_of(content) != file.sha256:
            raise BackupError(f"{content}, the content of {file.name}, is missing or damaged")
        contents.add(file.name, content)
        if time.monotonic() - told_at > TELL_EVERY_S:
            told_at = time.monotonic()
            tell(f"{contents.root}: {number} of {len(wanted)} files")
    tell(f"{contents.root}: {len(wanted)} files added, {len(there)} were there")
    return len(wanted)
