"""The command line that starts a sandbox.

An engine that runs as root first becomes a user that owns nothing: the kernel does not count the processes of root, so
a fork bomb would have no bound, and whatever leaked would be root's. Where that user may not read this Python (it lies
under a closed home), an outer sandbox binds it for him:

    bwrap (outer, root: binds only)  ─>  setpriv (a user of its own)  ─>  bwrap (the sandbox)  ─>  python3

Invariants:
- the launcher's environment is empty: `--clearenv` alone leaves it readable in /proc/1/environ, and there is no /proc;
- the only places that can be written are /tmp, of a given size, and what the pipes take.
"""

import os
import random
import shutil
from collections.abc import Mapping, Sequence
from typing import Final

from engine.environments.sandbox.outcome import Limits, SandboxUnavailable
from engine.environments.sandbox.python_tree import HOME, PACKAGES, PROGRAM, Bind, PythonTree

INSTALL: Final = "sudo apt-get install bubblewrap"
BOX: Final = "/box"

_NOBODIES: Final = (0x60000000, 0x6FFFFFFF)  # far above real users and the ranges that containers are given
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_OUTER_SEES: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64")


def require_bubblewrap() -> str:
    """The path of bwrap. Raises `SandboxUnavailable` (a `ValueError`) that says how to get it."""
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable(
            f"untrusted code runs only in a sandbox, and bubblewrap is not installed; install it with: {INSTALL}"
        )
    return found


def sandbox_command(
    *, tree: PythonTree, limits: Limits, files: Mapping[str, int], filter_fd: int, arguments: Sequence[str]
) -> list[str]:
    """`files` are names in /box with the descriptors that hold their contents."""
    bwrap = require_bubblewrap()
    if os.geteuid() != 0:
        return _inner(bwrap, [*_placed(tree), *_bind(tree.loader)], limits, files, filter_fd, arguments)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SandboxUnavailable("an engine that runs as root needs setpriv (package util-linux) for its sandbox")
    user = str(random.SystemRandom().randint(*_NOBODIES))
    becomes = [setpriv, "--reuid", user, "--regid", user, "--clear-groups", "--"]
    if tree.is_public:
        placed = [*_placed(tree), *_bind(tree.loader)]
        return becomes + _inner(bwrap, placed, limits, files, filter_fd, arguments)
    loader = Bind(tree.loader.target, tree.loader.target)  # the outer sandbox sees this machine's libraries
    again = [word for bind in (Bind(HOME, HOME), Bind(PACKAGES, PACKAGES), loader) for word in _bind(bind)]
    return [*_outer(bwrap, tree), *becomes, *_inner(bwrap, again, limits, files, filter_fd, arguments)]


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
    limits: Limits,
    files: Mapping[str, int],
    filter_fd: int,
    arguments: Sequence[str],
) -> list[str]:
    contents = [word for name, fd in files.items() for word in ("--perms", "0444", "--file", str(fd), f"{BOX}/{name}")]
    devices = [word for name in _DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    environment = {"LD_LIBRARY_PATH": f"{HOME}/lib", "HOME": "/tmp", "TMPDIR": "/tmp", "PATH": f"{HOME}/bin"}
    return [
        bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--new-session",
        "--die-with-parent", "--clearenv", "--hostname", "sandbox",
        *(word for key, value in environment.items() for word in ("--setenv", key, value)),
        *placed, *devices, "--perms", "0755", "--dir", BOX, *contents,
        "--size", str(limits.disk_bytes), "--perms", "0700", "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/",
        "--seccomp", str(filter_fd), "--",
        PROGRAM, "-I", "-B", "-X", "utf8", f"{BOX}/bootstrap.py", *arguments,
    ]  # fmt: skip
