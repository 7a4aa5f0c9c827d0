"""A file held open, so that other processes of this host can map it: even if its name is unlinked, or it never had one.

    holder: OpenFile ─▶ path ──plain string──▶ any process of the same user: map_path

Invariants:
- a process that has mapped the file keeps the bytes after the holder has closed it;
- memory without a name leaves nothing behind, however its processes end.
"""

import mmap
import os
import weakref
from typing import Self


class OpenFile:
    def __init__(self, descriptor: int) -> None:
        """Takes over `descriptor`, and closes it when this object is freed."""
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def without_name(cls, num_bytes: int) -> Self:
        """Anonymous memory, allocated at once: a host without room refuses here and kills no process during a copy."""
        descriptor = os.memfd_create("laminar", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, max(1, num_bytes))
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor)


def map_path(path: str, num_bytes: int, *, writable: bool = False) -> memoryview:
    descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return memoryview(mmap.mmap(descriptor, max(1, num_bytes), prot=protection))[:num_bytes]
    finally:
        os.close(descriptor)
