"""The home of one local Laminar: its folders, ports and secrets, all under `.laminar/`.

Invariants:
- secrets and sign-ins are readable by their owner alone, and made once;
- ports are written down whole (who chooses them: `ports.py`);
- Ray sees only short paths without spaces: it joins command lines by spaces, and a Unix socket's path may have at
  most 107 bytes. A private alias folder in the temporary directory gives it both.
"""

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.local.errors import LocalError

PROJECT = Path(__file__).resolve().parents[2]
HOME_MARKER = "LAMINAR_HOME_MARK"
"""In the environment of every process of a home."""
SERVICE_MARKER = "LAMINAR_SERVICE"


@dataclass(frozen=True, slots=True)
class Home:
    folder: Path

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def secrets_folder(self) -> Path:
        return self.folder / "secrets"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def site(self) -> Path:
        """What Ray has no business with."""
        return self.folder / "site"

    @property
    def local_json(self) -> Path:
        return self.folder / "local.json"

    @property
    def ports_file(self) -> Path:
        return self.folder / "ports.json"

    @property
    def lock_file(self) -> Path:
        """Held by the supervisor for as long as it lives."""
        return self.run / "lock"

    @property
    def status_file(self) -> Path:
        return self.run / "status.json"

    @property
    def alias(self) -> Path:
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:10]
        return Path(tempfile.gettempdir()) / f"lam-{os.getuid()}-{digest}"

    @property
    def ray_folder(self) -> Path:
        return self.alias / "ray"

    @property
    def project_alias(self) -> Path:
        return self.alias / "project"

    def prepare(self) -> None:
        """Make the folders. Others may pass through the home, so that Postgres can run as somebody else than root."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711)
        for folder in (self.logs, self.run, self.secrets_folder, self.store, self.site, self.site / "static"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)

    def prepare_alias(self) -> None:
        """For Ray alone. The caller removes the alias after Ray has ended."""
        if self.alias.is_symlink() or (self.alias.exists() and self.alias.stat().st_uid != os.getuid()):
            raise LocalError(f"{self.alias} belongs to another user; remove it, or set TMPDIR to another folder")
        self.alias.mkdir(mode=0o700, exist_ok=True)
        self.alias.chmod(0o700)
        if not self.project_alias.is_symlink() or self.project_alias.readlink() != PROJECT:
            making = self.alias / f"project.{os.getpid()}"  # whole at once: two commands may come together
            making.symlink_to(PROJECT)
            making.replace(self.project_alias)

    def forget_ray_sessions(self) -> None:
        """Ray keeps session after session in its folder; nothing in it outlives a stop."""
        shutil.rmtree(self.ray_folder, ignore_errors=True)

    def forget_alias(self) -> None:
        shutil.rmtree(self.alias, ignore_errors=True)

    def alias_of(self, path: str) -> str:
        """The same file of the project by a path that Ray can bear."""
        return path.replace(str(PROJECT), str(self.project_alias), 1) if path.startswith(str(PROJECT)) else path

    def secret(self, name: str) -> str:
        """A secret of this home, created at its first use."""
        file = self.secrets_folder / name
        if not file.exists():
            write_private(file, secrets.token_urlsafe(32))
        return file.read_text().strip()

    def write_ports(self, ports: Mapping[str, int]) -> None:
        write_private(self.ports_file, json.dumps(ports, indent=1))

    def written_ports(self) -> dict[str, int]:
        ports: dict[str, int] = json.loads(self.ports_file.read_text())
        return ports


def write_private(file: Path, text: str) -> None:
    """Whole or absent, and for the owner's eyes only."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def read_json(file: Path) -> Mapping[str, Any] | None:
    try:
        content: Mapping[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content


def shell_variables() -> dict[str, str]:
    """The part of its starter's environment that every process of the site has. A variable named after us or after Ray
    is set here or not at all.

    Bytecode is always cached, even if the shell disables that: pip does not compile, and a site starts so many
    processes that compiling torch and Django again for each takes longer than all their other work.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINAR_", "RAY_"))}
    return inherited | {"PYTHONDONTWRITEBYTECODE": ""}


def default_home() -> Home:
    return Home(Path(os.environ.get("LAMINAR_HOME") or PROJECT / ".laminar").absolute())
