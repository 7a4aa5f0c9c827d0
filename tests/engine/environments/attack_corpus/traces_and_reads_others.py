# expect: Finished
import ctypes
import os

PTRACE_TRACEME, PTRACE_ATTACH, PTRACE_SEIZE = 0, 16, 0x4206
libc = ctypes.CDLL("libc.so.6", use_errno=True)
done = [
    request
    for request, pid in ((PTRACE_ATTACH, 1), (PTRACE_SEIZE, 1), (PTRACE_TRACEME, 0), (PTRACE_ATTACH, os.getppid()))
    if libc.ptrace(request, pid, None, None) == 0
]
if libc.process_vm_readv(1, None, 0, None, 0, 0) == 0:
    done.append(-1)
print(f"ESCAPED: {done}" if done else "blocked")
