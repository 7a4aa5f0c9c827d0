"""Two releases of the code on one site: the whole of one, and the control plane of the other in place of its own.

one release   ─▶ postgres, valkey, ray with its drivers, web, worker, beat
the other     ─▶ web, worker, beat in their place, while everything else continues
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest

from backend.environment import OPTIONAL
from infra.local.home import PROJECT, Home
from infra.local.processes import belongings, end_belongings
from infra.local.services.site import Site
from infra.local.site_commands import supervisor_status
from tests.e2e.customer import Customer
from tests.waiting import eventually

# The migrations of 0.1.0: the last commit that changed them is the earlier release.
FIRST_MIGRATIONS: Final = ("backend/*/migrations/0001_initial.py", "backend/jobs/migrations/0002_initial.py")
SPECS: Final = Path("engine/spec/templates")
REPLACED: Final = ("web", "worker", "beat")
STARTS_WITHIN_S: Final = 240.0


def earlier_release(folder: Path) -> Path:
    """Its files; a checkout without history has none."""
    if _git("rev-parse", "--is-shallow-repository") == b"true\n":
        pytest.skip("this checkout has no history: `git fetch --unshallow`")
    commit = _git("log", "-1", "--format=%H", "--", *FIRST_MIGRATIONS).decode().strip()
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=_git("archive", commit), check=True)
    return folder


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, check=True).stdout


@contextmanager
def site_of(release: Path, home: Home) -> Iterator[Customer]:
    """Starts it as that release's `make up` does; its customer submits that release's specs."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAMINAR_")}
    command = [sys.executable, "-m", "infra.local", "--home", str(home.folder)]

    def run(word: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*command, word], cwd=release, env=environment, capture_output=True, text=True, timeout=400
        )

    started = run("up")
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        local = json.loads(home.local_json.read_text())
        headers = {"Authorization": f"Bearer {local['api_key']}"}
        with httpx.Client(base_url=local["url"], headers=headers, timeout=20) as client:
            yield Customer(client=client, project=local["project"], patience_s=120, specs=release / SPECS)
    finally:
        run("down")
        left = belongings(home)
        shutil.rmtree(home.alias, ignore_errors=True)
        assert not left, f"left behind: {left}"


@contextmanager
def control_plane_of(release: Path, home: Home, *, migrates: bool) -> Iterator[None]:
    """Replaces the running control plane. The supervisor is suspended, so it restarts nothing meanwhile."""
    status = supervisor_status(home)
    assert status is not None
    supervisor = psutil.Process(int(status["supervisor"]["pid"]))
    site = Site(home=home, ports=home.written_ports())
    services = [service for service in site.services() if service.name in REPLACED]
    started = list[subprocess.Popen[bytes]]()
    supervisor.suspend()
    try:
        if migrates:  # as infra/upgrade.sh does: the former serves meanwhile
            _manage(release, site, "migrate", "--noinput", "--verbosity", "0")
        for service in services:
            end_belongings(home, service.name)
            environment = _of_this_site(site.marked(service), release)
            with (home.logs / f"{service.name}.log").open("ab") as log:
                started.append(
                    subprocess.Popen(service.command(), stdout=log, stderr=log, cwd=release, env=environment)
                )
        eventually(
            lambda: [service.name for service in services if not service.is_healthy()],
            "every replaced service is healthy",
            until=lambda unhealthy: not unhealthy,
            within_s=STARTS_WITHIN_S,
            every_s=0.5,
            log=lambda: {service.name: _last(home, service.name) for service in services},
        )
        yield
    finally:
        for name in REPLACED:
            end_belongings(home, name)
        for process in started:
            process.wait(30)
        supervisor.resume()


def _manage(release: Path, site: Site, *words: str) -> None:
    environment = _of_this_site(site.control_environment(), release)
    command = [sys.executable, "manage.py", *words]
    done = subprocess.run(command, cwd=release, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _of_this_site(variables: Mapping[str, str], release: Path) -> dict[str, str]:
    """Without the variables that the tests' environment sets for another site."""
    elsewhere = {name for name in OPTIONAL if name in os.environ} - {"LAMINAR_SITE_DIR", "LAMINAR_DATABASE_DIRECT_URL"}
    return {name: value for name, value in variables.items() if name not in elsewhere} | {"PYTHONPATH": str(release)}


def _last(home: Home, name: str) -> str:
    return (home.logs / f"{name}.log").read_text(errors="replace")[-1500:]
