"""The folder of this host's shared memory, and its size."""

import os
import tempfile
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
FOLDER: Final = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())


def shared_memory_bytes() -> int:
    """All of it, free or not."""
    memory = os.statvfs(FOLDER)
    return memory.f_blocks * memory.f_frsize
