# expect: Finished
import ctypes

NEWNS, NEWUSER, NEWNET, SIGCHLD = 0x20000, 0x10000000, 0x40000000, 17
SYS_CLONE, SYS_CLONE3, SYS_IO_URING_SETUP, SYS_BPF, SYS_KEYCTL = 56, 435, 425, 321, 250
libc = ctypes.CDLL("libc.so.6", use_errno=True)
done = [name for name, flags in (("user", NEWUSER), ("mount", NEWNS), ("net", NEWNET)) if libc.unshare(flags) == 0]
if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
    done.append("mount")
if libc.chroot(b"/tmp") == 0:
    done.append("chroot")
for name, arguments in (
    ("clone", (SYS_CLONE, NEWUSER | SIGCHLD, 0, 0, 0, 0)),
    # a high bit that the kernel drops must not get past the filter
    ("clone, high bit", (SYS_CLONE, (1 << 40) | NEWUSER | SIGCHLD, 0, 0, 0, 0)),
    ("clone3", (SYS_CLONE3, None, 0)),
    ("io_uring", (SYS_IO_URING_SETUP, 8, None)),
    ("bpf", (SYS_BPF, 0, None, 0)),
    ("keyctl", (SYS_KEYCTL, 0, -3, 0)),
):
    if libc.syscall(*(ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments)) >= 0:
        done.append(name)
print(f"ESCAPED: {done}" if done else "blocked")
