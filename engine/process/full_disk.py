"""Appends to a file on a disk that may be full: no data is lost if the disk is cleared in time.

Invariants:
- when `append_through` returns, all data is on the disk, once; while it waits for room it logs an error;
- a wait is bounded: after it the error is raised to the caller;
- a wait gives signs of life, so that the process does not count as stuck.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from io import FileIO
from typing import Final

from engine.process.progress import report_progress

log = logging.getLogger(__name__)

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
LOOK_EVERY_S: Final = 1.0
# Long enough for an operator on call, or for a cleaner that runs every few minutes. The run may end before.
WAITS_S: Final = 900.0


def append_through(
    file: FileIO,
    data: bytes,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Appends to `file`, which is unbuffered and positioned at its end."""
    left, give_up_at = memoryview(data), 0.0
    while True:
        try:
            while left:
                left = left[file.write(left) or 0 :]
            os.fsync(file.fileno())
            return
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            now = clock()
            if not give_up_at:
                log.error("disk full file=%s; waiting for free space", file.name)
                give_up_at = now + WAITS_S
            if now >= give_up_at:
                raise
            report_progress()
            sleep(LOOK_EVERY_S)
