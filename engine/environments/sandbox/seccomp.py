"""The system-call filter of the sandbox, as the program that the kernel wants (an array of `struct sock_filter`).

It is a second wall: namespaces, dropped capabilities and limits already forbid most of this. What it adds is that a
process in the sandbox cannot trace or read another one, make namespaces, talk to anything but Unix sockets, type into
a terminal, or reach the parts of the kernel that most escapes went through (io_uring, bpf, keyrings, userfaultfd), and
that no memory can be had that the watch from outside does not see (memfd, System V segments).

Invariant: arguments are compared by their lower 32 bits where the kernel reads 32 (a filter that compares 64 is walked
around by setting a high bit).
"""

import platform
import struct
from collections.abc import Iterator
from typing import Final

from engine.environments.sandbox.outcome import SandboxUnavailable

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERRNO: Final = 0x00050000
_EPERM: Final = _ERRNO | 1
_ENOSYS: Final = _ERRNO | 38

_NUMBER_AT: Final = 0
_ARCH_AT: Final = 4
_ARGUMENTS_AT: Final = 16

_X86_64: Final = 0xC000003E
_X32_BIT: Final = 0x40000000
_NEW_NAMESPACES: Final = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET
_AF_UNIX: Final = 1
_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
_CLONE, _CLONE3, _SOCKET, _IOCTL = 56, 435, 41, 16

_DENIED: Final = {
    # other processes
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "process_madvise": 440,
    "kcmp": 312, "move_pages": 279, "migrate_pages": 256,
    # file systems and namespaces
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300, "quotactl": 179, "quotactl_fd": 443,
    "mknod": 133, "mknodat": 259,
    # memory that no limit counts
    "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
    # large, young or privileged parts of the kernel
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "bpf": 321, "perf_event_open": 298,
    "userfaultfd": 323, "add_key": 248, "request_key": 249, "keyctl": 250, "init_module": 175, "finit_module": 313,
    "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "personality": 135,
    "syslog": 103, "acct": 163, "vhangup": 153, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
    "clock_adjtime": 305, "uselib": 134, "sysfs": 139, "lookup_dcookie": 212,
}  # fmt: skip


def filter_program() -> bytes:
    if platform.machine() != "x86_64":
        raise SandboxUnavailable(f"the sandbox's system-call filter is written for x86_64, not {platform.machine()}")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _instructions())


def _instructions() -> Iterator[tuple[int, int, int, int]]:
    yield _LOAD, 0, 0, _ARCH_AT
    yield _EQUAL, 1, 0, _X86_64
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER_AT
    yield from _if(_AT_LEAST, _X32_BIT, _ENOSYS)
    yield from _if(
        _EQUAL, _CLONE3, _ENOSYS
    )  # its flags lie in memory, out of a filter's sight; libc falls back to clone
    for number in _DENIED.values():
        yield from _if(_EQUAL, number, _EPERM)
    yield from _unless_argument(_CLONE, 0, (_ANY_BIT, _NEW_NAMESPACES, _EPERM))
    yield from _unless_argument(_IOCTL, 1, (_EQUAL, _TIOCSTI, _EPERM), (_EQUAL, _TIOCLINUX, _EPERM))
    yield _EQUAL, 0, 3, _SOCKET
    yield _LOAD, 0, 0, _ARGUMENTS_AT
    yield _EQUAL, 1, 0, _AF_UNIX
    yield _RETURN, 0, 0, _EPERM
    yield _RETURN, 0, 0, _ALLOW


def _if(test: int, value: int, verdict: int) -> Iterator[tuple[int, int, int, int]]:
    yield test, 0, 1, value
    yield _RETURN, 0, 0, verdict


def _unless_argument(number: int, at: int, *refused: tuple[int, int, int]) -> Iterator[tuple[int, int, int, int]]:
    """For this call, look at one argument; the call's number is loaded again afterwards."""
    yield _EQUAL, 0, 2 + 2 * len(refused), number
    yield _LOAD, 0, 0, _ARGUMENTS_AT + 8 * at
    for test, value, verdict in refused:
        yield from _if(test, value, verdict)
    yield _LOAD, 0, 0, _NUMBER_AT
