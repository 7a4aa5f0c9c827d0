# expect: Finished
"""Memory that belongs to no process."""

import ctypes
import os

libc = ctypes.CDLL("libc.so.6", use_errno=True)
try:
    os.memfd_create("hoard")
    print("ESCAPED: memfd")
except PermissionError:
    print("blocked")
if libc.shmget(0, 1 << 30, 0o1600) >= 0:
    print("ESCAPED: shmget")
