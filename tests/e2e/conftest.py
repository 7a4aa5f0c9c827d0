"""A whole site of its own for the end-to-end tests: every service, real, in a temporary home."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.client.laminar_client import Laminar
from infra.local.home import PROJECT, Home
from infra.local.processes import belongings

TERMINAL = {"succeeded", "failed", "cancelled"}


@dataclass(frozen=True)
class Stack:
    home: Home
    client: httpx.Client
    project: str
    patience_s: float = 60.0

    def submit(self, **changes: dict[str, Any]) -> dict[str, Any]:
        """The demo's spec with some sections changed: `training={"steps": 30}`."""
        return self.submit_within(0.0, changes)

    def submit_within(self, within_s: float, changes: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Asked again for so long, under the same key, while the site does not take it."""
        spec = json.loads((PROJECT / "engine/spec/templates/running_sums.json").read_text())
        for section, values in changes.items():
            spec[section] |= values
        body, key = {"project": self.project, "spec": spec}, str(uuid.uuid4())
        deadline = time.monotonic() + within_s
        while True:
            try:
                answer = self.client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": key})
                if answer.status_code == 202:
                    job: dict[str, Any] = answer.json()
                    return job
                problem = answer.text
            except httpx.TransportError as error:
                problem = repr(error)
            assert time.monotonic() < deadline, problem
            time.sleep(0.5)

    def upload(self, path: Path, *, kind: str, name: str) -> None:
        key = str(self.client.headers["Authorization"]).removeprefix("Bearer ")
        with Laminar(str(self.client.base_url), key) as client:
            assert client.assets.upload(path, kind=kind, name=name).state == "ready"

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """An answer, however long the servers behind it take to come back."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                answer = self.client.get(f"/api/v1{path}", params=params)
                if answer.status_code == 200:
                    content: dict[str, Any] = answer.json()
                    return content
                problem = answer.text
            except httpx.TransportError as error:
                problem = repr(error)
            assert time.monotonic() < deadline, problem
            time.sleep(0.2)

    def wait(self, job_id: str, condition: Callable[[dict[str, Any]], bool], *, within_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + within_s
        while True:
            job = self.get(f"/jobs/{job_id}")
            if condition(job):
                return job
            over = job["state"] in TERMINAL or time.monotonic() > deadline
            assert not over, f"{job['state']} at step {job['step']}: {job['failure_class']} {job['message']}"
            time.sleep(0.3)

    def finish(self, job_id: str, *, within_s: float = 300) -> dict[str, Any]:
        return self.wait(job_id, lambda job: job["state"] in TERMINAL, within_s=within_s)

    def series(self, job_id: str) -> dict[str, list[tuple[int, float]]]:
        gathered: dict[str, list[tuple[int, float]]] = {}
        cursor, more = 0, True
        while more:
            page = self.get(f"/jobs/{job_id}/metrics", after=cursor)
            for name, points in page["series"].items():
                gathered.setdefault(name, []).extend((step, value) for step, value in points)
            cursor, more = page["cursor"], page["more"]
        return gathered

    def service(self, name: str) -> dict[str, Any]:
        service: dict[str, Any] = json.loads(self.home.status_file.read_text())["services"][name]
        return service

    def kill(self, name: str) -> None:
        """SIGKILL to every process of a service, and wait until the supervisor has it healthy again."""
        before = self.service(name)
        for process in belongings(self.home, name):
            os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 90
        while (now := self.service(name))["restarts"] == before["restarts"] or now["state"] != "healthy":
            assert time.monotonic() < deadline, f"{name} did not come back: {now}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Of this module alone: its dozen processes are not to run beside all tests that come later."""
    home = Home(tmp_path_factory.mktemp("stack") / ".laminar")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAMINAR_")}
    command = [sys.executable, "-m", "infra.local", "--home", str(home.folder)]
    started = subprocess.run(
        [*command, "up"], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=300
    )
    try:
        assert started.returncode == 0, started.stdout + started.stderr + _tail(home.logs)
        local = json.loads(home.local_json.read_text())
        headers = {"Authorization": f"Bearer {local['api_key']}"}
        with httpx.Client(base_url=local["url"], headers=headers, timeout=20) as client:
            yield Stack(home=home, client=client, project=local["project"])
    finally:
        subprocess.run([*command, "down"], cwd=PROJECT, env=environment, capture_output=True, timeout=120)
        left = belongings(home)
        shutil.rmtree(home.alias, ignore_errors=True)
        assert not left, f"left behind: {left}"


def _tail(logs: Path) -> str:
    return "\n".join(f"── {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(logs.glob("*.log")))
