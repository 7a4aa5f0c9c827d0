"""The system-call filter of the sandbox, as the program that the kernel takes (an array of `struct sock_filter`).

The filter is a second wall: namespaces, dropped capabilities and limits already forbid most of this. In addition, a
process in the sandbox cannot trace or read another one, make namespaces, type into a terminal, or reach the parts of
the kernel that most escapes used (io_uring, bpf, keyrings, userfaultfd).

The filter also denies memory that no limit of a process counts, which matters where no control group counts it:

    memfd, System V segments      denied
    sockets in flight, waiting    denied: only pairs of Unix sockets, with buffers of the kernel's size
    pages in pipes                no vmsplice, no F_SETPIPE_SZ
    page tables                   fixed addresses only in two windows of 4 GiB, hence 16 MiB of tables; with address
                                  randomization in one of 17 TiB, hence tables as large as the pages they map
    inotify, aio, landlock, filters, access control lists      denied
    processes (`is_alone`)        threads only; a new process fails as with a full process table (EAGAIN)
    byte-range locks (`is_alone`) succeed without effect: there is no other process to lock out

Invariant: arguments are compared by their lower 32 bits where the kernel reads 32 (a set high bit would otherwise
bypass the filter), and by both halves where it reads 64.
"""

import platform
import struct
from collections.abc import Iterator, Sequence
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
_EAGAIN: Final = _ERRNO | 11
_EINVAL: Final = _ERRNO | 22
_DONE: Final = _ERRNO  # error 0: the call is skipped and returns success

_NUMBER_AT: Final = 0
_ARCH_AT: Final = 4
_ARGUMENTS_AT: Final = 16

_X86_64: Final = 0xC000003E
_X32_BIT: Final = 0x40000000
_NEW_NAMESPACES: Final = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET
_AF_UNIX: Final = 1
_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
_CLONE, _CLONE3, _SOCKETPAIR, _IOCTL, _FCNTL, _PRCTL, _MMAP, _MREMAP = 56, 435, 53, 16, 72, 157, 9, 25
_FORK, _VFORK, _CLONE_THREAD = 57, 58, 0x10000
_F_SETLK, _F_SETLKW, _F_OFD_SETLK, _F_OFD_SETLKW, _F_SETPIPE_SZ = 6, 7, 37, 38, 1031
_PR_SET_SECCOMP, _MREMAP_FIXED = 22, 2
_ABOVE, _END = 0x7FFF, 0x8000
"""Upper halves of addresses: of libraries without randomization, and of the end of the address space."""
_DRAWN_FROM = 0x6F00
"""The lowest upper half with randomization, which draws from 16 TiB at most."""

_DENIED: Final = {
    # other processes
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "process_madvise": 440,
    "kcmp": 312, "move_pages": 279, "migrate_pages": 256,
    # its own priority: code with the lowest one could find any host too busy
    "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setattr": 314,
    # file systems and namespaces
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300, "quotactl": 179, "quotactl_fd": 443,
    "mknod": 133, "mknodat": 259,
    # memory that no limit counts
    "socket": 41, "connect": 42, "accept": 43, "accept4": 288, "bind": 49, "listen": 50, "setsockopt": 54,
    "sendmsg": 46, "sendmmsg": 307, "vmsplice": 278, "io_setup": 206, "inotify_init": 253, "inotify_init1": 294,
    "landlock_create_ruleset": 444, "seccomp": 317, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
    "setxattrat": 463, "remap_file_pages": 216,
    "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
    # large, new or privileged parts of the kernel
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "bpf": 321, "perf_event_open": 298,
    "userfaultfd": 323, "add_key": 248, "request_key": 249, "keyctl": 250, "init_module": 175, "finit_module": 313,
    "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "personality": 135,
    "syslog": 103, "acct": 163, "vhangup": 153, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
    "clock_adjtime": 305, "uselib": 134, "sysfs": 139, "lookup_dcookie": 212,
}  # fmt: skip


def filter_program(*, is_alone: bool, addresses_are_fixed: bool) -> bytes:
    """`is_alone`: a single process, with as many threads as its limit allows."""
    if platform.machine() != "x86_64":
        raise SandboxUnavailable(f"the sandbox's system-call filter is written for x86_64, not {platform.machine()}")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _instructions(is_alone, addresses_are_fixed))


def _instructions(is_alone: bool, addresses_are_fixed: bool) -> Iterator[tuple[int, int, int, int]]:
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
    yield from _where(_CLONE, 0, _if(_ANY_BIT, _NEW_NAMESPACES, _EPERM))
    yield from _where(_IOCTL, 1, _if(_EQUAL, _TIOCSTI, _EPERM), _if(_EQUAL, _TIOCLINUX, _EPERM))
    yield from _where(_SOCKETPAIR, 0, _unless(_EQUAL, _AF_UNIX, _EPERM))
    yield from _where(_FCNTL, 1, _if(_EQUAL, _F_SETPIPE_SZ, _EPERM))
    yield from _where(_PRCTL, 0, _if(_EQUAL, _PR_SET_SECCOMP, _EPERM))
    yield from _where(_MREMAP, 3, _if(_ANY_BIT, _MREMAP_FIXED, _EPERM))
    least = _ABOVE if addresses_are_fixed else _DRAWN_FROM
    outside = [(_EQUAL, 3, 0, 0), (_AT_LEAST, 0, 1, least), (_AT_LEAST, 0, 1, _END), (_RETURN, 0, 0, _EPERM)]
    yield from _where(_MMAP, 0.5, outside)
    if is_alone:
        yield from _where(_CLONE, 0, _unless(_ANY_BIT, _CLONE_THREAD, _EAGAIN))
        for number in (_FORK, _VFORK):
            yield from _if(_EQUAL, number, _EAGAIN)
        locks = [_if(_EQUAL, command, _DONE) for command in (_F_SETLK, _F_SETLKW)]
        yield from _where(_FCNTL, 1, *locks, *(_if(_EQUAL, each, _EINVAL) for each in (_F_OFD_SETLK, _F_OFD_SETLKW)))
    yield _RETURN, 0, 0, _ALLOW


_Instructions = Sequence[tuple[int, int, int, int]]


def _if(test: int, value: int, verdict: int) -> _Instructions:
    return [(test, 0, 1, value), (_RETURN, 0, 0, verdict)]


def _unless(test: int, value: int, verdict: int) -> _Instructions:
    return [(test, 1, 0, value), (_RETURN, 0, 0, verdict)]


def _where(number: int, argument: float, *tests: _Instructions) -> Iterator[tuple[int, int, int, int]]:
    """For the call `number`: tests one argument (`n`) or its upper half (`n + 0.5`), then reloads the call's number."""
    steps = [step for test in tests for step in test]
    yield _EQUAL, 0, 2 + len(steps), number
    yield _LOAD, 0, 0, _ARGUMENTS_AT + int(8 * argument)
    yield from steps
    yield _LOAD, 0, 0, _NUMBER_AT
