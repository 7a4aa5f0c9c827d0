"""`python -m infra.local.testing -- COMMAND …`: a throw-away Postgres and Valkey for one command.

They live in a temporary folder on free ports, in memory as far as they can, and end with the command. The command
finds them in the LAMINAR_ variables; Django's test runner makes its own databases in there.

Invariant: however a run ends, nothing of it is left. On SIGTERM and SIGINT it removes its processes and its folder
itself; of a run that was killed the next one removes them.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from infra.local.errors import LocalError
from infra.local.home import Home
from infra.local.interruption import end_as_if_by_keyboard, uninterrupted
from infra.local.ports import PortClaims
from infra.local.processes import RUN_MARKER, end, end_belongings, processes_of_run
from infra.local.services.postgres import Postgres
from infra.local.services.site import Site

PREFIX = "laminar-test-"
OWNER = "owner.json"
STARTS_WITHIN_S = 60.0
ENDS_WITHIN_S = 20.0  # a site that a test started stops its services one after the other
ORIGIN = "http://127.0.0.1:8000"  # nothing listens there; tests of origins and links name it


@contextlib.contextmanager
def throw_away_site() -> Iterator[dict[str, str]]:
    """The environment in which a test run finds its servers."""
    end_as_if_by_keyboard()
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _write_owner(folder)
    home = Home(folder / "home")
    try:
        home.prepare()
        folder.chmod(0o711)
        with PortClaims(home, preferred={}) as ports:  # people's own sites prefer the ports that people know
            site = Site(home=home, ports=ports.numbers)
            object.__setattr__(site, "postgres", Postgres(home=home, port=site.ports["postgres"], is_durable=False))
            _start_servers(site)
            yield environment_of_tests(site) | {RUN_MARKER: str(folder)}
    finally:
        with uninterrupted():
            _remove(folder)


def _start_servers(site: Site) -> None:
    logs = site.home.logs
    site.home.secret("ray")
    servers = site.services()[:2]
    for service in servers:
        service.prepare()
        with (logs / f"{service.name}.log").open("ab") as log:
            subprocess.Popen(
                service.command(), stdout=log, stderr=log, cwd="/", env=site.marked(service),
                start_new_session=True, **service.identity(),
            )  # fmt: skip
    for service in servers:
        _wait_for(service.name, service.is_healthy, logs / f"{service.name}.log")
    site.postgres.ensure_database()


def _write_owner(folder: Path) -> None:
    owner = {"pid": os.getpid(), "started": psutil.Process().create_time()}
    (folder / OWNER).write_text(json.dumps(owner))


def remove_abandoned() -> None:
    """What runs left behind that were killed. Others may be running."""
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        if not _is_alive(owner):
            _remove(owner.parent)


def _is_alive(owner: Path) -> bool:
    try:
        if owner.stat().st_uid != os.getuid():
            return True  # only that user may remove it
        known = json.loads(owner.read_text())
        return bool(psutil.Process(known["pid"]).create_time() == known["started"])
    except FileNotFoundError:
        return True  # another run removes it just now
    except (json.JSONDecodeError, psutil.NoSuchProcess):
        return False


def _remove(folder: Path) -> None:
    home = Home(folder / "home")
    end(processes_of_run(str(folder)), grace_s=ENDS_WITHIN_S)
    end_belongings(home, grace_s=1)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(home.alias, ignore_errors=True)


def environment_of_tests(site: Site) -> dict[str, str]:
    return {
        **site.control_environment(),
        "LAMINAR_PUBLIC_URL": ORIGIN,
        "LAMINAR_CONTROL_URL": ORIGIN,
        "LAMINAR_ALLOWED_HOSTS": "127.0.0.1,localhost,testserver",
        "OMP_NUM_THREADS": "1",  # threads that wait for each other by spinning slow everybody on busy cores
        "RAY_memory_monitor_refresh_ms": "0",  # it looks at the whole host, which is not the tests' alone
    }


def _wait_for(name: str, is_healthy: object, log: Path) -> None:
    assert callable(is_healthy)
    deadline = time.monotonic() + STARTS_WITHIN_S
    while not is_healthy():
        if time.monotonic() > deadline:
            raise LocalError(f"{name} did not start: {log.read_text()[-1000:]}")
        time.sleep(0.1)


def main(arguments: Sequence[str]) -> int:
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command:
        print("usage: python -m infra.local.testing -- COMMAND …", file=sys.stderr)
        return 2
    try:
        with throw_away_site() as environment:
            return subprocess.run(command, env=environment, check=False).returncode
    except LocalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
