"""A file held open, and so to be had by other processes of this host: also after its name is gone, or without one.

    holder: OpenFile ─▶ path ──plain string──▶ any process of the same user: map_path

Invariants:
- whoever has mapped it keeps the bytes, whatever becomes of the holder;
- memory without a name leaves nothing behind, however its processes end.
"""

import mmap
import os
import weakref
from typing import Self


class OpenFile:
    def __init__(self, descriptor: int) -> None:
        """`descriptor` is this one's from now on, and closed with it."""
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def without_name(cls, num_bytes: int) -> Self:
        """Memory. It is taken now: a full host refuses here, and kills nobody in mid-copy."""
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
