# expect: Finished
"""Kernel objects whose memory counts against no limit, or against one that is shared with the site."""

import ctypes
import os
from pathlib import Path

CALLS = {"io_setup": 206, "inotify_init": 253, "landlock_create_ruleset": 444, "seccomp": 317, "add_key": 248}
libc = ctypes.CDLL("libc.so.6", use_errno=True)
done = [name for name, number in CALLS.items() if libc.syscall(number, 1, 0, 0, 0, 0) >= 0 or ctypes.get_errno() != 1]
if libc.prctl(22, 2, None) == 0 or ctypes.get_errno() != 1:  # PR_SET_SECCOMP
    done.append("prctl")
Path("/tmp/file").touch()
try:
    os.setxattr("/tmp/file", "system.posix_acl_access", bytes(60_000))
    done.append("setxattr")
except PermissionError:
    pass
print(f"ESCAPED: {done}" if done else "blocked")
