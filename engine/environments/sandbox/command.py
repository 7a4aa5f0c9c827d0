"""The command line that starts a sandbox.

A sandbox first becomes a user that owns nothing (`users.py`): the kernel does not count the processes of root, so a
fork bomb would have no bound, and whatever leaked would be the engine's. Where that user may not read this Python (it
lies under a closed home), an outer sandbox binds it for him:

    sh (joins its memory group)  ─>  unshare (an ordinary engine: is root within)  ─>  bwrap (outer: binds only)
        ─>  setpriv (a user of its own)  ─>  unshare, mount (its /tmp)  ─>  bwrap (the sandbox)  ─>  python3

bubblewrap cannot bound the number of files, so /tmp is mounted before it, in a name space that ends with the sandbox.

In a container (`is_contained`) bubblewrap is asked for less: it forbids namespaces by writing to /proc/sys, which is
read-only there, and renames the machine by a call that containers refuse. The filter forbids namespaces in any case.

Invariants:
- the launcher's environment is empty: `--clearenv` alone leaves it readable in /proc/1/environ, and there is no /proc;
- Python reads no environment but this one, so its flags are those of `-I`, but that it knows the seed of its hashes;
- the only places that can be written are /tmp, of a given size and number of files, and what the pipes take; the file
  system itself refuses more.
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
    # The size of the stack decides where libraries are mapped, and the filter knows where that is. A newer mount takes
    # other calls than mount's own unless it is told so, and a container's filter allows no more than it must.
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
    """The path of bwrap. Raises `SandboxUnavailable` (a `ValueError`) that says how to get it."""
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable(
            f"untrusted code runs only in a sandbox, and bubblewrap is not installed; install it with: {INSTALL}"
        )
    return found


def sandbox_command(
    *,
    tree: PythonTree,
    limits: Limits,
    files: Mapping[str, int],
    filter_fd: int,
    arguments: Sequence[str],
    group: MemoryGroup | None = None,
) -> list[str]:
    """`files` are names in /box with the descriptors that hold their contents; `group` counts its memory."""
    joins = [] if group is None else [program_at("sh"), "-c", JOINS, "sh", str(group.folder)]
    return [*joins, *_confined(tree, limits, files, filter_fd, arguments)]


def _confined(
    tree: PythonTree, limits: Limits, files: Mapping[str, int], filter_fd: int, arguments: Sequence[str]
) -> list[str]:
    bwrap = require_bubblewrap()
    inner = partial(_inner, bwrap, limits=limits, files=files, filter_fd=filter_fd, arguments=arguments)
    placed = [*_placed(tree), *_bind(tree.loader)]
    user = stranger()
    if user is None:
        return inner(placed, place=_place_beside(tree))
    if tree.is_public:
        return [*user.rules, *user.becomes, *inner(placed, place=_place_beside(tree))]
    loader = Bind(tree.loader.target, tree.loader.target)  # the outer sandbox sees this machine's libraries
    again = [word for bind in (Bind(HOME, HOME), Bind(PACKAGES, PACKAGES), loader) for word in _bind(bind)]
    return [*user.rules, *_outer(bwrap, tree), *user.becomes, *inner(again, place="/tmp")]


@cache
def is_contained() -> bool:
    """Somebody else confines this process: by a filter of system calls, or by a /proc/sys that cannot be written."""
    is_filtered = "\nSeccomp:\t2" in (_PROC / "self/status").read_text()
    return is_filtered or bool(os.statvfs(_PROC / "sys").f_flag & os.ST_RDONLY)


def _place_beside(tree: PythonTree) -> str:
    """A folder that the sandbox's /tmp may be mounted over, in its own name space, without hiding what it is given."""
    given = [Path(bind.source) for bind in (*tree.binds, tree.loader)]
    for place in map(Path, _PLACES):
        if place.is_dir() and not any(place in source.parents for source in given):
            return str(place)
    raise SandboxUnavailable(
        f"the sandbox mounts its /tmp over one of {', '.join(_PLACES)}, and none is there and free"
    )


def _outer(bwrap: str, tree: PythonTree) -> list[str]:
    sees = [word for path in _OUTER_SEES for word in ("--ro-bind-try", path, path)]
    return [
        bwrap, "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--clearenv",
        *sees, *_placed(tree), "--proc", "/proc", "--dev", "/dev", "--dir", "/tmp", "--remount-ro", "/", "--",
    ]  # fmt: skip


def _placed(tree: PythonTree) -> list[str]:
    folders = (HOME, f"{HOME}/bin", f"{HOME}/lib", PACKAGES)
    return [
        *(word for folder in folders for word in ("--perms", "0755", "--dir", folder)),
        *(word for bind in tree.binds for word in _bind(bind)),
        *(word for folder in tree.hidden for word in ("--tmpfs", folder, "--remount-ro", folder)),
    ]


def _bind(bind: Bind) -> list[str]:
    return ["--ro-bind", bind.source, bind.target]


def _inner(
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
