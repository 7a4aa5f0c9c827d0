"""Free space on a folder's disk, as this process sees it, for requests that must not wait for a disk.

A system call on a mount whose server is gone blocks in the kernel without a deadline. A separate thread therefore makes
the call (`background_call`). Its `CallResult` has the last result, its age, and how long a call has been pending.
"""

import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backend.background_call import BackgroundCall, CallResult

PATIENCE_S: Final = 1.0  # a local disk answers in microseconds, a remote file server in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    free_bytes: int
    """For processes that are not root."""
    num_bytes: int
    may_write: bool


_guard = threading.Lock()
_asides: defaultdict[Path, BackgroundCall[Room]] = defaultdict(lambda: BackgroundCall(deadline_s=PATIENCE_S))


def room_at(folder: Path) -> CallResult[Room]:
    """Raises `OSError`: the folder is missing (`FileNotFoundError`), or its disk reports an error."""
    with _guard:
        aside = _asides[folder]
    return aside.newest(lambda: _look(folder))


def _look(folder: Path) -> Room:
    disk = os.statvfs(folder)
    may_write = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return Room(free_bytes=disk.f_bavail * disk.f_frsize, num_bytes=disk.f_blocks * disk.f_frsize, may_write=may_write)
