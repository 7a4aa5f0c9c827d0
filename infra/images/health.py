"""`python health.py SERVICE`: the health check of a container, which also ends what gives no sign of life.

An engine of containers restarts what has ended, and only marks what hangs. So a service that was silent in the last
`SILENT_LOOKS` looks is killed here, and comes back by the container's `restart`.

Invariants:
- only silence kills. A service that answers that a dependency is down is unhealthy, and a restart would not help;
- nothing is killed within `GRACE_S` of its start, nor for a time without health checks: silent checks are counted;
- what counts them dies with the container's processes: it lies in its memory.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

SILENT_LOOKS: Final = 6
GRACE_S: Final = 300.0  # a start on a busy machine; no service is silent for longer
PATIENCE_S: Final = 10.0
COUNT: Final = Path("/dev/shm/laminar-silent-looks")


class Silent(Exception):
    """No sign of life."""


class Unwell(Exception):
    """A sign of life, and bad news."""


def main(service: str) -> str:
    """What is wrong; empty: nothing."""
    try:
        SIGNS[service]()
    except Silent as silence:
        looks = _silent_looks() + 1
        if looks >= SILENT_LOOKS and _age_s() > GRACE_S:
            _end()
            return f"{silence}; silent in {looks} looks, and so ended: it starts again"
        COUNT.write_text(str(looks))
        return str(silence)
    except Unwell as news:
        COUNT.unlink(missing_ok=True)
        return str(news)
    COUNT.unlink(missing_ok=True)
    return ""


def web() -> None:
    _ask("http://127.0.0.1:8000/readyz", {})


def ray_head() -> None:
    """The Jobs API, as web and worker ask it, and the node itself."""
    _ask("http://127.0.0.1:8265/api/version", _ray_token())
    ray_node()


def ray_node() -> None:
    """Checks this node's own agent: the head's answer does not cover this node."""
    _ask("http://127.0.0.1:52365/api/local_raylet_healthz", _ray_token())


def background(part: str) -> None:
    """By what it last did: a process that is stopped is there, too."""
    from backend.environment import read_environment  # the image of the nodes has no backend
    from backend.listening import HeartbeatUnknown, silence_of

    try:
        silence = silence_of(part, read_environment())
    except HeartbeatUnknown as error:
        raise Unwell(str(error)) from error
    if silence:
        raise Silent(silence)


def followed() -> None:
    """By the server: of the process one sees only that it is there."""
    from infra.backup.errors import BackupError  # the image of backups alone has it
    from infra.backup.postgres import Server
    from infra.backup.source import replicating_url

    try:
        is_followed = Server(replicating_url(os.environ)).is_followed()
    except BackupError as error:
        raise Unwell(str(error)) from error
    if not is_followed:
        raise Silent("no receiver streams the WAL of Postgres")


SIGNS: Final[dict[str, Callable[[], None]]] = {
    "web": web, "worker": lambda: background("worker"), "beat": lambda: background("beat"),
    "ray-head": ray_head, "ray-worker": ray_node, "wal": followed,
}  # fmt: skip


def _ray_token() -> dict[str, str]:
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text().strip()
    return {"Authorization": f"Bearer {token}"}


def _ask(address: str, headers: dict[str, str]) -> None:
    """Of this container: a proxy in its environment is for what is outside."""
    try:
        build_opener(ProxyHandler({})).open(Request(address, headers=headers), timeout=PATIENCE_S).close()
    except HTTPError as answer:
        raise Unwell(f"{address} answers {answer.code}: {answer.read(300).decode(errors='replace')}") from answer
    except OSError as error:
        raise Silent(f"{address}: {error}") from error


def _silent_looks() -> int:
    try:
        return int(COUNT.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _age_s() -> float:
    """Of the container's first process."""
    began_ticks = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    return up_s - began_ticks / os.sysconf("SC_CLK_TCK")


def _end() -> None:
    """What the first process started: the first itself takes no such signal from inside, and ends with them."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == 1:
                os.kill(int(folder.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


if __name__ == "__main__":
    wrong = main(sys.argv[1])
    sys.exit(wrong or 0)  # the text goes to stderr, which `docker inspect` shows
