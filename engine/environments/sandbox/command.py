"""The command line that starts a sandbox.

A sandbox first becomes a user that owns nothing (`users.py`): the kernel does not count root's processes, so a fork
bomb would have no bound, and code that escaped would run as the engine's user. Where that user cannot read this Python
(it is in a closed home), an outer sandbox binds it:

    sh (joins its memory group)  ─>  unshare (an ordinary engine: is root within)  ─>  bwrap (outer: binds only)
        ─>  setpriv (a user of its own)  ─>  unshare, mount (its /tmp)  ─>  bwrap (the sandbox)  ─>  python3

bubblewrap cannot bound the number of files, so /tmp is mounted before it, in a namespace that ends with the sandbox.

In a container (`is_contained`) bubblewrap runs with fewer options: it would forbid namespaces by writing to /proc/sys,
which is read-only there, and set the host name by a call that containers refuse. The filter always forbids namespaces.

Invariants:
- the launcher's environment is empty: `--clearenv` alone leaves it readable in /proc/1/environ. There is no /proc;
- Python reads no environment variables but `ENVIRONMENT`, so its flags are those of `-I` without `-E`, which would
  ignore the hash seed;
- only /tmp, of a given size and number of files, and the pipes can be written; the file system refuses more.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

from engine.environments.sandbox.memory_group import JOINS, MemoryGroup
from engine.environments.sandbox.outcome import Limits, SandboxUnavailable
from engine.environments.sandbox.python_tree import HOME, PACKAGES, PROGRAM, Bind, PythonTree
from engine.environments.sandbox.starting import program_at
from engine.environments.sandbox.users import stranger

INSTALL: Final = "sudo apt-get install bubblewrap"
BOX: Final = "/box"

_PLACES: Final = ("/dev/shm", "/mnt", "/media", "/srv")
_FURNISHES: Final = (
    # The stack's limit decides where libraries are mapped, and the filter relies on that place. LIBMOUNT_FORCE_MOUNT2
    # keeps a newer mount from using newer system calls, which a container's filter refuses.
    "ulimit -S -s 8192 2>/dev/null; "
    'LIBMOUNT_FORCE_MOUNT2=always "$1" -t tmpfs -o "$2" tmpfs "$3" && shift 3 && exec "$@"'
)
ENVIRONMENT: Final = {
    "LD_LIBRARY_PATH": f"{HOME}/lib", "HOME": "/tmp", "TMPDIR": "/tmp", "PATH": f"{HOME}/bin",
    "PYTHONHASHSEED": "0",  # an environment makes the same prompt in every process
}  # fmt: skip
PYTHON: Final = (PROGRAM, "-s", "-P", "-B", "-X", "utf8", f"{BOX}/bootstrap.py")
NOBODY: Final = 65534
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_OUTER_SEES: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_PROC: Final = Path("/proc")
_BEYOND_CONTAINERS: Final = ("--disable-userns", "--hostname", "sandbox")


def require_bubblewrap() -> str:
    """The path of bwrap. Raises `SandboxUnavailable` (a `ValueError`) with the command that installs it."""
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxUnavailable(
            f"untrusted code needs the sandbox, and bubblewrap is not installed; install it with: {INSTALL}"
        )
    return path


def sandbox_command(
    *,
    tree: PythonTree,
    limits: Limits,
    files: Mapping[str, int],
    filter_fd: int,
    arguments: Sequence[str],
    group: MemoryGroup | None = None,
) -> list[str]:
    """`files`: names in /box, with descriptors of their contents. `group`: the group that counts the memory."""
    joins = [] if group is None else [program_at("sh"), "-c", JOINS, "sh", str(group.folder)]
    return [*joins, *_confined_command(tree, limits, files, filter_fd, arguments)]


def _confined_command(
    tree: PythonTree, limits: Limits, files: Mapping[str, int], filter_fd: int, arguments: Sequence[str]
) -> list[str]:
    bwrap = require_bubblewrap()
    inner = partial(_inner_command, bwrap, limits=limits, files=files, filter_fd=filter_fd, arguments=arguments)
    placed = [*_bind_files(tree), *_bind(tree.loader)]
    user = stranger()
    if user is None:
        return inner(placed, place=_place_of(tree))
    if tree.is_public:
        return [*user.rules, *user.becomes, *inner(placed, place=_place_of(tree))]
    loader = Bind(tree.loader.target, tree.loader.target)  # the outer sandbox sees this machine's libraries
    again = [word for bind in (Bind(HOME, HOME), Bind(PACKAGES, PACKAGES), loader) for word in _bind(bind)]
    return [*user.rules, *_outer_command(bwrap, tree), *user.becomes, *inner(again, place="/tmp")]


@cache
def is_contained() -> bool:
    """True if this process is itself confined: by a filter of system calls, or by a read-only /proc/sys."""
    is_filtered = "\nSeccomp:\t2" in (_PROC / "self/status").read_text()
    return is_filtered or bool(os.statvfs(_PROC / "sys").f_flag & os.ST_RDONLY)


def _place_of(tree: PythonTree) -> str:
    """A folder to mount the sandbox's /tmp over, in its own namespace, without hiding any of the bound files."""
    given = [Path(bind.source) for bind in (*tree.binds, tree.loader)]
    for place in map(Path, _PLACES):
        if place.is_dir() and not any(place in source.parents for source in given):
            return str(place)
    raise SandboxUnavailable(
        f"the sandbox mounts its /tmp over one of {', '.join(_PLACES)}, and none of them exists and is free"
    )


def _outer_command(bwrap: str, tree: PythonTree) -> list[str]:
    sees = [word for path in _OUTER_SEES for word in ("--ro-bind-try", path, path)]
    return [
        bwrap, "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--clearenv",
        *sees, *_bind_files(tree), "--proc", "/proc", "--dev", "/dev", "--dir", "/tmp", "--remount-ro", "/", "--",
    ]  # fmt: skip


def _bind_files(tree: PythonTree) -> list[str]:
    folders = (HOME, f"{HOME}/bin", f"{HOME}/lib", PACKAGES)
    return [
        *(word for folder in folders for word in ("--perms", "0755", "--dir", folder)),
        *(word for bind in tree.binds for word in _bind(bind)),
        *(word for folder in tree.hidden for word in ("--tmpfs", folder, "--remount-ro", folder)),
    ]


def _bind(bind: Bind) -> list[str]:
    return ["--ro-bind", bind.source, bind.target]


def _inner_command(
    bwrap: str,
    placed: Sequence[str],
    *,
    place: str,
    limits: Limits,
    files: Mapping[str, int],
    filter_fd: int,
    arguments: Sequence[str],
) -> list[str]:
    room = f"size={limits.disk_bytes},nr_inodes={limits.num_files},mode=0700,nosuid,nodev"
    contents = [word for name, fd in files.items() for word in ("--perms", "0444", "--file", str(fd), f"{BOX}/{name}")]
    devices = [word for name in _DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    beyond = () if is_contained() else _BEYOND_CONTAINERS
    return [
        program_at("unshare"), "--user", "--map-root-user", "--mount", "--",
        program_at("sh"), "-c", _FURNISHES, "sh", program_at("mount"), room, place,
        bwrap, "--unshare-all", "--unshare-user", *beyond, "--cap-drop", "ALL", "--new-session",
        "--die-with-parent", "--clearenv", "--uid", str(NOBODY), "--gid", str(NOBODY),
        *(word for key, value in ENVIRONMENT.items() for word in ("--setenv", key, value)),
        *placed, *devices, "--perms", "0755", "--dir", BOX, *contents,
        "--bind", place, "/tmp", "--chdir", "/tmp", "--remount-ro", "/",
        "--seccomp", str(filter_fd), "--",
        *PYTHON, *arguments,
    ]  # fmt: skip
