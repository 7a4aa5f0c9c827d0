"""A whole site of its own for the end-to-end tests: every service, real, in a temporary home.

It takes half a minute to start, so those of `make test` share one. Who puts its database back, or hurts it for hours,
has another one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.local.home import PROJECT, Home
from infra.local.processes import belongings
from infra.local.services.site import Site
from tests.e2e.customer import Customer
from tests.waiting import eventually


@dataclass(frozen=True, kw_only=True)
class Stack(Customer):
    home: Home

    @property
    def database(self) -> str:
        return Site(home=self.home, ports=self.home.written_ports()).postgres.url()

    def service(self, name: str) -> dict[str, Any]:
        service: dict[str, Any] = json.loads(self.home.status_file.read_text())["services"][name]
        return service

    def kill(self, name: str) -> None:
        """SIGKILL to every process of a service, and wait until the supervisor has it healthy again."""
        before = self.service(name)
        for process in belongings(self.home, name):
            os.kill(process.pid, signal.SIGKILL)
        eventually(
            lambda: self.service(name),
            f"{name} is healthy again",
            until=lambda now: now["restarts"] != before["restarts"] and now["state"] == "healthy",
            within_s=300,
            every_s=0.1,
        )


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """For this folder only: its dozen processes must not run next to all later tests."""
    with running_stack(new_home(tmp_path_factory)) as running:
        yield running


def new_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    chosen = os.environ.get("SOAK_HOME")
    return Home(Path(chosen) if chosen else tmp_path_factory.mktemp("stack") / ".laminar")


@contextmanager
def running_stack(home: Home) -> Iterator[Stack]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAMINAR_")}
    environment["RAY_worker_niceness"] = "0"  # with Ray's own 15, jobs starve next to the rest of `make test`
    command = [sys.executable, "-m", "infra.local", "--home", str(home.folder)]
    started = subprocess.run(
        [*command, "up"], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=900
    )
    try:
        assert started.returncode == 0, started.stdout + started.stderr + _tail(home.logs)
        local = json.loads(home.local_json.read_text())
        headers = {"Authorization": f"Bearer {local['api_key']}"}
        with httpx.Client(base_url=local["url"], headers=headers, timeout=60) as client:
            yield Stack(home=home, client=client, project=local["project"])
    finally:
        subprocess.run([*command, "down"], cwd=PROJECT, env=environment, capture_output=True, timeout=300)
        left = belongings(home)
        shutil.rmtree(home.alias, ignore_errors=True)
        assert not left, f"left behind: {left}"


def _tail(logs: Path) -> str:
    return "\n".join(f"── {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(logs.glob("*.log")))
