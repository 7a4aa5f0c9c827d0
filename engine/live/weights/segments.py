"""Shared memory of one host: files in memory that processes map, each held by the processes that need it.

    writer: create ─ copy ─ hand the name over        reader: map (nothing is copied)
                                └──▶ another holder: adopt (a second name for the same memory)
    several writers: one reserves a name, each allocates the memory of its own part there, and writes it
    files: lend a folder, which is removed afterwards

Invariants:
- memory is allocated before it is written: a full host fails there, and never kills a process during a copy;
- a process can write by a name only while the segment is held: another segment never gets the same name;
- a holder has a shared lock on its file; the kernel releases it when the process ends in any way, so an unlocked file
  has no owner, and `sweep` removes it;
- a removed segment stays readable for processes that have mapped it.
"""

import fcntl
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

from engine.live.process.shared_memory import FOLDER as FOLDER
from engine.process.progress import working
from engine.weights.chunks import PIECE_BYTES, TornWeights, WeightsGone, chunk_spans
from engine.weights.open_file import OpenFile

PREFIX: Final = "laminar-"
# Linux 5.14; Python has no names for them
_MADV_POPULATE_READ: Final = 22
_MADV_POPULATE_WRITE: Final = 23


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBytes:
    """The name of shared memory, for any process of the same host."""

    name: str
    num_bytes: int
    memory: str
    """Identifies the shared memory: processes with the same value see the same files."""


def own_memory() -> str:
    """Identifies the shared memory that this process sees. Containers have one each, unless they share it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else os.uname().nodename
    return f"{machine}/{FOLDER.stat().st_dev}"


class Segment:
    def __init__(
        self,
        path: Path,
        descriptor: int,
        num_bytes: int,
        *,
        memory: str,
        is_taken: bool = True,
        is_own: bool = True,
    ) -> None:
        """`is_taken`: the memory is allocated; populate its pages now. `is_own`: this process created the file."""
        self._path, self._descriptor = path, descriptor
        self.is_own = is_own
        mapped = mmap.mmap(descriptor, max(1, num_bytes), flags=mmap.MAP_SHARED)
        if is_taken:
            _populate_pages(mapped, 0, len(mapped))
        self.buffer = memoryview(mapped)[:num_bytes]
        self.shared = SharedBytes(name=path.name, num_bytes=num_bytes, memory=memory)

    @classmethod
    def create(cls, owner: str, num_bytes: int) -> Self:
        """`owner` is part of the name, so that people can attribute the memory."""
        path, descriptor = _locked_file(owner)
        try:
            _allocate(descriptor, [(0, max(1, num_bytes))])
            return cls(path, descriptor, num_bytes, memory=own_memory())
        except OSError:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise

    @classmethod
    def reserve(cls, owner: str, num_bytes: int) -> Self:
        """Reserves a name without memory: the writers allocate it."""
        path, descriptor = _locked_file(owner)
        os.ftruncate(descriptor, max(1, num_bytes))
        return cls(path, descriptor, num_bytes, memory=own_memory(), is_taken=False)

    @classmethod
    def adopt(cls, owner: str, shared: SharedBytes) -> Self:
        """Holds another process's segment under a second name, so that it outlives that process."""
        with _open_segment(shared, os.O_RDWR) as (source, descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            path = _new_path(owner)
            try:
                path.hardlink_to(source)
            except FileNotFoundError as error:
                raise WeightsGone(f"{shared.name} is gone") from error
            return cls(path, os.dup(descriptor), shared.num_bytes, memory=shared.memory, is_taken=False, is_own=False)

    @property
    def is_removed(self) -> bool:
        return self._descriptor < 0

    def remove(self) -> None:
        """Removes the file; readers keep what they have mapped."""
        self._path.unlink(missing_ok=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _populate_pages(mapped: mmap.mmap, first: int, last: int, how: int = _MADV_POPULATE_WRITE) -> None:
    """Populates pages ahead of a copy. Piece by piece: each call blocks the other threads of the process."""
    with suppress(OSError):  # an older kernel
        for start, end in chunk_spans(last - first, PIECE_BYTES):
            with working("map"):
                mapped.madvise(how, first + start, end - start)


def _allocate(descriptor: int, parts: Iterable[tuple[int, int]]) -> None:
    for start, end in parts:
        try:
            os.posix_fallocate(descriptor, start, end - start)
        except OSError as error:
            reason = f"host {os.uname().nodename}: no {end - start:,} bytes left in {FOLDER} for weights"
            raise OSError(error.errno, reason) from error


def map_to_write(shared: SharedBytes, parts: Iterable[tuple[int, int]]) -> memoryview:
    """Maps memory that another process of this host reserved; this process writes only these parts."""
    last = max(1, shared.num_bytes)
    pages = [(start - start % mmap.PAGESIZE, min(end + -end % mmap.PAGESIZE, last)) for start, end in parts]
    with _open_segment(shared, os.O_RDWR) as (_, descriptor):
        _allocate(descriptor, pages)
        mapped = mmap.mmap(descriptor, last, flags=mmap.MAP_SHARED)
    for start, end in pages:
        _populate_pages(mapped, start, end)
    return memoryview(mapped)[: shared.num_bytes]


def release_pages(memory: memoryview) -> None:
    """Releases this process's pages, on a background thread: else unmapping takes half as long as the copy did, under
    the interpreter's lock. Other processes' mappings stay."""
    mapped = memory.obj
    assert isinstance(mapped, mmap.mmap)
    for start, end in chunk_spans(len(mapped), PIECE_BYTES):
        mapped.madvise(mmap.MADV_DONTNEED, start, end - start)


def map_shared(shared: SharedBytes) -> memoryview:
    with _open_segment(shared, os.O_RDONLY) as (_, descriptor):
        mapped = mmap.mmap(descriptor, max(1, shared.num_bytes), prot=mmap.PROT_READ)
    _populate_pages(mapped, 0, len(mapped), _MADV_POPULATE_READ)
    return memoryview(mapped)[: shared.num_bytes]


def hold_open(shared: SharedBytes) -> OpenFile:
    """Holds the file open: other processes can open it through this one even after its writer removes it."""
    with _open_segment(shared, os.O_RDONLY) as (_, descriptor):
        return OpenFile(os.dup(descriptor))


def sweep() -> list[str]:
    """Removes files of dead processes; returns their names."""
    removed = []
    for path in FOLDER.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:  # already gone, or another user's
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
            removed.append(path.name)
        except BlockingIOError:  # a process holds it
            pass
        finally:
            os.close(descriptor)
    return removed


@contextmanager
def lent_folder(owner: str) -> Iterator[Path]:
    """An empty folder, held and swept like segments."""
    path, descriptor = _locked_folder(owner)
    try:
        yield path
    finally:
        _remove(path)
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _new_path(owner: str) -> Path:
    return FOLDER / f"{PREFIX}{owner}-{uuid4().hex}"


def _locked_file(owner: str) -> tuple[Path, int]:
    while True:
        path = _new_path(owner)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:  # a sweep may have run between the two calls
            return path, descriptor
        os.close(descriptor)


def _locked_folder(owner: str) -> tuple[Path, int]:
    while True:
        path = _new_path(owner)
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # a sweep, as above
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if path.is_dir():
                return path, descriptor
            os.close(descriptor)


@contextmanager
def _open_segment(shared: SharedBytes, flags: int) -> Iterator[tuple[Path, int]]:
    path = FOLDER / shared.name
    if not shared.name.startswith(PREFIX) or path.parent != FOLDER:
        raise TornWeights(f"{shared.name!r} is not a name of weights")
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise WeightsGone(f"{shared.name} is gone") from error
    try:
        if os.fstat(descriptor).st_size < shared.num_bytes:
            raise TornWeights(f"{shared.name} is shorter than {shared.num_bytes} bytes")
        yield path, descriptor
    finally:
        os.close(descriptor)
