"""The folder of backups.

Invariants:
- a backup is made in a folder whose name ends in `.making`, and renamed once its manifest is on disk: one that was
  interrupted, wherever, is none, and the next one takes its remains away;
- one process at a time writes here.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.backup.errors import BackupError
from infra.backup.manifest import Manifest, sync_folder

MANIFEST = "manifest.json"
MAKING = ".making"


@dataclass(frozen=True, slots=True)
class Repository:
    folder: Path

    def wal(self, era: str) -> Path:
        folder = self.folder / "wal" / era
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    @property
    def points(self) -> Path:
        return self.folder / "points"

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    def object(self, sha256: str) -> Path:
        return self.folder / "objects" / sha256[:2] / sha256

    def point(self, id: str) -> Path:
        return self.points / id

    def backups(self) -> list[Manifest]:
        """The oldest first."""
        found = self.points.glob(f"*/{MANIFEST}") if self.points.is_dir() else iter(())
        return [Manifest.read(path) for path in sorted(found) if not path.parent.name.endswith(MAKING)]

    @contextmanager
    def writing(self) -> Iterator[None]:
        for folder in (self.folder, self.points, self.secrets, self.folder / "objects"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BackupError(f"another backup is being written to {self.folder}; wait until it ends") from error
            yield

    def begin(self, id: str) -> Path:
        for left in self.points.glob(f"*{MAKING}"):
            shutil.rmtree(left)
        making = self.points / f"{id}{MAKING}"
        making.mkdir(mode=0o700)
        return making

    def finish(self, making: Path, manifest: Manifest) -> None:
        manifest.write(making / MANIFEST)
        making.rename(self.point(manifest.id))
        sync_folder(self.points)
