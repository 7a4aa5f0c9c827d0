# expect: Finished
"""Pages in pipes: larger pipes than the default, and pages that no process maps any more."""

import ctypes
import fcntl
import mmap
import os
from contextlib import suppress

done = []
reads, writes = os.pipe()
with suppress(PermissionError):
    fcntl.fcntl(writes, 1031, 1 << 20)  # F_SETPIPE_SZ
    done.append("size")
libc = ctypes.CDLL("libc.so.6", use_errno=True)
page = mmap.mmap(-1, 4096)
page[0] = 1
place = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.c_char.from_buffer(page)), 4096)
if libc.vmsplice(writes, ctypes.byref(place), ctypes.c_ulong(1), 0) > 0:
    done.append("vmsplice")
print(f"ESCAPED: {done}" if done else "blocked")
