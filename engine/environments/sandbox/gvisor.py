"""gVisor in place of bubblewrap (LAMINAR_SANDBOX=gvisor): a kernel of its own, in user space, handles the system calls
of the untrusted code, so that a vulnerability in Linux alone is no way out.

    sh (joins its memory group)  ─>  setpriv (dies with the engine)  ─>  runsc  ─>  python3

A control group counts the memory of all processes, so gVisor cannot run where none can be made. runsc passes on
standard streams only: the other pipes are named ones.

Invariant: if gVisor is chosen but unavailable, the code is refused, and never runs in another sandbox.
"""

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from engine.environments.sandbox.command import BOX, ENVIRONMENT, NOBODY, PYTHON
from engine.environments.sandbox.memory_group import JOINS, MemoryGroup
from engine.environments.sandbox.outcome import Limits, SandboxUnavailable
from engine.environments.sandbox.python_tree import Bind, PythonTree
from engine.environments.sandbox.starting import program_at
from engine.spec.node_variables import read_variable

INSTALL: Final = "https://gvisor.dev/docs/user_guide/install/"
_CHOICES: Final = ("", "bubblewrap", "gvisor")
_CHANNEL: Final = "/channel"
_NAMESPACES: Final = ("pid", "network", "ipc", "uts", "mount")


def is_chosen(environment: Mapping[str, str] = os.environ) -> bool:
    """Raises `SandboxUnavailable` for an unknown sandbox."""
    chosen = read_variable("LAMINAR_SANDBOX", environment)
    if chosen not in _CHOICES:
        raise SandboxUnavailable(f"LAMINAR_SANDBOX: must be bubblewrap (or empty) or gvisor, got {chosen!r}")
    return chosen == "gvisor"


def require_runsc() -> str:
    path = shutil.which("runsc")
    if path is None:
        raise SandboxUnavailable(f"LAMINAR_SANDBOX=gvisor needs runsc, which is not on the PATH; install it: {INSTALL}")
    return path


class Bundle:
    """A folder that is removed with the sandbox: runsc's configuration, the files of /box, and the named pipes."""

    def __init__(self, tree: PythonTree, limits: Limits, files: Mapping[str, str]) -> None:
        self._runsc, self._tree, self._limits = require_runsc(), tree, limits
        self._folder = Path(tempfile.mkdtemp(prefix="laminar-gvisor-"))
        for name in ("rootfs", "box", "channel", "state"):
            (self._folder / name).mkdir(mode=0o755)
        for name, text in files.items():
            (self._folder / "box" / name).write_text(text)
            (self._folder / "box" / name).chmod(0o444)

    def channel(self, name: str, *, writes: bool) -> tuple[str, int]:
        """The pipe's path inside, and our end. `writes`: the sandbox writes to it."""
        path = self._folder / "channel" / name
        os.mkfifo(path)
        path.chmod(0o666)
        mode = os.O_RDONLY if writes else os.O_RDWR  # O_WRONLY would fail, as there is no reader yet
        return f"{_CHANNEL}/{name}", os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)

    def command(
        self, setup: Mapping[str, object], group: MemoryGroup | None, resources: Sequence[tuple[str, int, int]]
    ) -> list[str]:
        """runsc sets the resource limits: code inside could not raise them to the wanted values."""
        if group is None:
            raise SandboxUnavailable("LAMINAR_SANDBOX=gvisor needs control groups, and none can be made here")
        config = self._config([json.dumps({**setup, "limits": []})], resources)
        (self._folder / "config.json").write_text(json.dumps(config))
        options = ["--network=none", "--ignore-cgroups", "--host-fifo=open", f"--root={self._folder / 'state'}"]
        rootless = [] if os.geteuid() == 0 else ["--rootless"]
        return [
            program_at("sh"), "-c", JOINS, "sh", str(group.folder),
            program_at("setpriv"), "--pdeathsig", "KILL", "--",
            self._runsc, *rootless, *options, "run", f"--bundle={self._folder}", f"sandbox-{secrets.token_hex(8)}",
        ]  # fmt: skip

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _config(self, arguments: Sequence[str], resources: Sequence[tuple[str, int, int]]) -> dict[str, object]:
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": NOBODY, "gid": NOBODY},
                "args": [*PYTHON, *arguments],
                "env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
                "cwd": "/tmp",
                "rlimits": [{"type": name, "soft": soft, "hard": hard} for name, soft, hard in resources],
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs", "readonly": True},
            "hostname": "sandbox",
            "mounts": self._mounts(),
            "linux": {"namespaces": [{"type": name} for name in _NAMESPACES]},
        }

    def _mounts(self) -> list[dict[str, object]]:
        binds = [*self._tree.binds, self._tree.loader, Bind(str(self._folder / "box"), BOX)]
        room = [f"size={self._limits.disk_bytes}", "mode=0700", f"uid={NOBODY}", f"gid={NOBODY}"]
        return [
            *(_mount("bind", bind.source, bind.target, "ro") for bind in binds),
            *(_mount("tmpfs", "tmpfs", folder, "ro") for folder in self._tree.hidden),
            _mount("tmpfs", "tmpfs", "/tmp", *room),
            _mount("bind", str(self._folder / "channel"), _CHANNEL, "rw"),
        ]


def _mount(kind: str, source: str, target: str, *options: str) -> dict[str, object]:
    return {"type": kind, "source": source, "destination": target, "options": list(options)}
