"""A node's folder of fetched assets, shared by every process of every job on it.

    <sha256>/          complete and verified: it appears by one rename
    <sha256>.coming/   being fetched; an interrupted fetch resumes from it
    <sha256>.lock      shared for users, exclusive for fetch or removal; its mtime is the last use

Invariants:
- if several processes need the same asset, one fetches it and the others wait;
- the locks are the kernel's: a dead process holds none;
- an asset in use is never evicted; at the limit the least recently used assets are evicted, and if that is not enough,
  the new asset is refused with the sizes, before a byte is fetched.
"""

import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 0.5
_held: Final[dict[Path, int]] = {}
"""Lock file → its handle, until this process ends."""


class NoRoom(ConnectionError):
    """The node has no disk space for the job's assets; another node may, or this one after a clean-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCache:
    root: Path
    max_bytes: int | None = None
    """None: half of its file system, which others use too."""

    def hold(
        self, sha256: str, *, num_bytes: int, fill: Callable[[Path], None], waiting: Callable[[], None] = lambda: None
    ) -> Path:
        """Returns the asset's folder and holds it until this process ends. `fill` may find parts of an earlier fetch.
        Raises `NoRoom`, and the errors of `fill` and `waiting`."""
        folder, lock = self.root / sha256, self.root / f"{sha256}.lock"
        if lock in _held:
            os.utime(lock)
            return folder
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(handle, fcntl.LOCK_SH) or not folder.is_dir():
                if _try_lock(handle, fcntl.LOCK_EX):  # it is missing, and no other process fetches it
                    if not folder.is_dir():
                        self._fetch(folder, handle, num_bytes, fill, waiting)
                    continue
                waiting()
                time.sleep(LOOK_AGAIN_S)
        except BaseException:
            os.close(handle)
            raise
        os.utime(lock)
        _held[lock] = handle
        return folder

    def _fetch(
        self, folder: Path, handle: int, num_bytes: int, fill: Callable[[Path], None], waiting: Callable[[], None]
    ) -> None:
        partial = folder.with_name(f"{folder.name}.coming")
        with self._exclusive("room", waiting):
            self._make_room(folder.name, num_bytes)
            partial.mkdir(exist_ok=True, mode=0o700)
            os.pwrite(handle, b"%020d" % num_bytes, 0)  # other processes count it from now on
        try:
            fill(partial)
            _sync(partial)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise NoRoom(f"this node's cache is full: {self._numbers(num_bytes)}") from error
        partial.rename(folder)

    def _make_room(self, own: str, num_bytes: int) -> None:
        for left in self.root.glob("*.going"):
            shutil.rmtree(left, ignore_errors=True)
        oldest_first = sorted(self._entries(own), key=lambda entry: entry.used_at)
        for entry in oldest_first:
            if self._has_room(own, num_bytes):
                return
            entry.remove_unless_used()
        if not self._has_room(own, num_bytes):
            raise NoRoom(f"this node's cache has no room: {self._numbers(num_bytes)}; its other assets are in use")

    def _has_room(self, own: str, num_bytes: int) -> bool:
        present = _bytes_in(self.root / f"{own}.coming")
        others = sum(entry.num_bytes for entry in self._entries(own))
        is_within = others + num_bytes <= self._bound()
        return is_within and num_bytes - present <= shutil.disk_usage(self.root).free

    def _numbers(self, num_bytes: int) -> str:
        free = shutil.disk_usage(self.root).free
        return (
            f"the job needs {num_bytes} bytes more, the disk has {free} free, and the cache may hold {self._bound()} "
            "(LAMINAR_NODE_CACHE_DIR, LAMINAR_NODE_CACHE_GB)"
        )

    def _bound(self) -> int:
        return shutil.disk_usage(self.root).total // 2 if self.max_bytes is None else self.max_bytes

    def _entries(self, own: str) -> list["_Entry"]:
        """The other assets, complete or being fetched."""
        names = {path.name.removesuffix(".coming") for path in self.root.iterdir() if path.is_dir()}
        return [_Entry.of(self.root / name) for name in sorted(names - {own}) if not name.endswith(".going")]

    @contextmanager
    def _exclusive(self, name: str, waiting: Callable[[], None]) -> Iterator[None]:
        handle = os.open(self.root / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(handle, fcntl.LOCK_EX):
                waiting()
                time.sleep(LOOK_AGAIN_S)
            yield
        finally:
            os.close(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    folder: Path
    num_bytes: int
    used_at: float

    @classmethod
    def of(cls, folder: Path) -> "_Entry":
        lock = folder.with_name(f"{folder.name}.lock")
        try:
            return cls(folder=folder, num_bytes=int(lock.read_text() or 0), used_at=lock.stat().st_mtime)
        except (OSError, ValueError):  # the lock was removed by hand: count the files
            return cls(folder=folder, num_bytes=_bytes_in(folder), used_at=0.0)

    def remove_unless_used(self) -> None:
        lock = self.folder.with_name(f"{self.folder.name}.lock")
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _try_lock(handle, fcntl.LOCK_EX):
                return
            log.info("removed asset=%s num_bytes=%d", self.folder.name, self.num_bytes)
            going = self.folder.with_name(f"{self.folder.name}.going")
            if self.folder.is_dir():
                self.folder.rename(going)  # in one step: a half-removed asset never looks complete
            shutil.rmtree(going, ignore_errors=True)
            shutil.rmtree(self.folder.with_name(f"{self.folder.name}.coming"), ignore_errors=True)
        finally:
            os.close(handle)


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _bytes_in(folder: Path) -> int:
    """The bytes on the disk: a sparse file counts for its written blocks."""
    return sum(file.stat().st_blocks * 512 for file in folder.glob("*")) if folder.is_dir() else 0


def _sync(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
