"""A node's folder of fetched assets, shared by every process of every job on it.

    <sha256>/          whole and verified: it appears by one rename
    <sha256>.coming/   being fetched; what is left of one goes on where it was
    <sha256>.lock      shared by who uses it, exclusive to who fetches or removes it; its time is that of the last use

Invariants:
- of any number of processes that want the same, one fetches and the others wait for it;
- the locks are the kernel's: whoever dies, of whatever, holds nothing any more;
- what somebody uses is never removed; beyond the bound goes what was used longest ago, and if that is not enough, the
  newcomer is refused with the numbers, before a byte of it is fetched.
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
"""By lock file, until this process ends."""


class NoRoom(ConnectionError):
    """The node cannot take what the job needs; another one may, or this one once its operator made room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCache:
    root: Path
    max_bytes: int | None = None
    """None: half of the file system that it lies on, which others use too."""

    def hold(
        self, sha256: str, *, num_bytes: int, fill: Callable[[Path], None], waiting: Callable[[], None] = lambda: None
    ) -> Path:
        """Its folder, until this process ends. `fill` may find what an earlier one left. Raises `NoRoom`, and what
        `fill` and `waiting` raise."""
        folder, lock = self.root / sha256, self.root / f"{sha256}.lock"
        if lock in _held:
            os.utime(lock)
            return folder
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(handle, fcntl.LOCK_SH) or not folder.is_dir():
                if _try_lock(handle, fcntl.LOCK_EX):  # it is not there, and nobody else is at it
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
        coming = folder.with_name(f"{folder.name}.coming")
        with self._alone("room", waiting):
            self._make_room(folder.name, num_bytes)
            coming.mkdir(exist_ok=True, mode=0o700)
            os.pwrite(handle, b"%020d" % num_bytes, 0)  # counted by others from here on
        try:
            fill(coming)
            _sync(coming)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise NoRoom(f"this node's cache is full: {self._numbers(num_bytes)}") from error
        coming.rename(folder)

    def _make_room(self, own: str, num_bytes: int) -> None:
        for left in self.root.glob("*.going"):
            shutil.rmtree(left, ignore_errors=True)
        oldest_first = sorted(self._entries(own), key=lambda entry: entry.used_at)
        for entry in oldest_first:
            if self._has_room(own, num_bytes):
                return
            entry.remove_unless_used()
        if not self._has_room(own, num_bytes):
            raise NoRoom(f"this node's cache has no room: {self._numbers(num_bytes)}; the rest of it is in use")

    def _has_room(self, own: str, num_bytes: int) -> bool:
        there = _bytes_in(self.root / f"{own}.coming")
        others = sum(entry.num_bytes for entry in self._entries(own))
        is_within = others + num_bytes <= self._bound()
        return is_within and num_bytes - there <= shutil.disk_usage(self.root).free

    def _numbers(self, num_bytes: int) -> str:
        free = shutil.disk_usage(self.root).free
        return (
            f"the job needs {num_bytes} bytes more, the disk has {free} free, and the cache may hold {self._bound()} "
            "(LAMINAR_NODE_CACHE_DIR, LAMINAR_NODE_CACHE_GB)"
        )

    def _bound(self) -> int:
        return shutil.disk_usage(self.root).total // 2 if self.max_bytes is None else self.max_bytes

    def _entries(self, own: str) -> list["_Entry"]:
        """The others, whole or coming."""
        names = {path.name.removesuffix(".coming") for path in self.root.iterdir() if path.is_dir()}
        return [_Entry.of(self.root / name) for name in sorted(names - {own}) if not name.endswith(".going")]

    @contextmanager
    def _alone(self, name: str, waiting: Callable[[], None]) -> Iterator[None]:
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
        except (OSError, ValueError):  # somebody emptied the folder by hand: what is there counts as it is
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
                self.folder.rename(going)  # at once, so that a half of it is never taken for the whole
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
    """On the disk: a file that was made as long as it will be counts for what was written of it."""
    return sum(file.stat().st_blocks * 512 for file in folder.glob("*")) if folder.is_dir() else 0


def _sync(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
