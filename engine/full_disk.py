"""Appending to a file on a disk that may be full: whoever clears it finds that nothing was lost.

Invariants:
- when `append_through` returns, all of it is on the disk, once; it waits for room, and says so in the log;
- a wait has an end: beyond it the disk is not full for a moment, and the caller's error tells so;
- while it waits it gives signs of life, since it is not what stands still.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from io import FileIO
from typing import Final

from engine.signs import still_here

log = logging.getLogger(__name__)

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
LOOK_EVERY_S: Final = 1.0
# Long enough for a person who was woken, or for a cleaner that runs every few minutes. The run may end before.
WAITS_S: Final = 900.0


def append_through(
    file: FileIO,
    data: bytes,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """`file`: unbuffered, at its end."""
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
                log.error("no room on the disk file=%s; waiting for some", file.name)
                give_up_at = now + WAITS_S
            if now >= give_up_at:
                raise
            still_here()
            sleep(LOOK_EVERY_S)
