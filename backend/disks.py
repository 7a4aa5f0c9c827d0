"""Room on the disk of a folder, as this process sees it, for requests that must not wait for a disk.

A mount whose server is gone answers nobody and heeds no deadline of ours: the kernel holds whoever asks. So a thread of
its own asks (`aside`), and `Heard` says what it last said, how old that is, and for how long it has been silent.
"""

import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backend.aside import Aside, Heard

PATIENCE_S: Final = 1.0  # a disk that is there answers in microseconds, a file server far away in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    free_bytes: int
    """For us, who are not root."""
    num_bytes: int
    may_write: bool


_guard = threading.Lock()
_asides: defaultdict[Path, Aside[Room]] = defaultdict(lambda: Aside(deadline_s=PATIENCE_S))


def room_at(folder: Path) -> Heard[Room]:
    """Raises `OSError`: the folder is not there (`FileNotFoundError`), or its disk says what is wrong with it."""
    with _guard:
        aside = _asides[folder]
    return aside.newest(lambda: _look(folder))


def _look(folder: Path) -> Room:
    disk = os.statvfs(folder)
    may_write = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return Room(free_bytes=disk.f_bavail * disk.f_frsize, num_bytes=disk.f_blocks * disk.f_frsize, may_write=may_write)
