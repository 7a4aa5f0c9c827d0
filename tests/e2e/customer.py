"""Somebody with an API key: submits jobs and watches them, however long the servers behind the API need to return."""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from frontend.client.laminar_client import Laminar
from infra.local.home import PROJECT

TERMINAL = {"succeeded", "failed", "cancelled"}


@dataclass(frozen=True)
class Customer:
    client: httpx.Client
    project: str
    patience_s: float = 180.0
    specs: Path = PROJECT / "engine/spec/templates"

    def submit(self, **changes: dict[str, Any]) -> dict[str, Any]:
        """The demo's spec with some sections changed: `training={"steps": 30}`."""
        return self.submit_within(0.0, changes)

    def submit_within(self, within_s: float, changes: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Retries for so long, under the same key, while the site does not accept the job."""
        spec = json.loads((self.specs / "running_sums.json").read_text())
        for section, values in changes.items():
            spec[section] = spec.get(section, {}) | values
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

    def finish(self, job_id: str, *, within_s: float = 900) -> dict[str, Any]:
        return self.wait(job_id, lambda job: job["state"] in TERMINAL, within_s=within_s)

    def events(self, job_id: str) -> list[dict[str, Any]]:
        events, more = list[dict[str, Any]](), True
        while more:
            page = self.get(f"/jobs/{job_id}/events", after=events[-1]["seq"] if events else 0)
            events, more = events + page["data"], page["has_more"]
        return events

    def series(self, job_id: str) -> dict[str, list[tuple[int, float]]]:
        gathered: dict[str, list[tuple[int, float]]] = {}
        cursor, more = 0, True
        while more:
            page = self.get(f"/jobs/{job_id}/metrics", after=cursor)
            for name, points in page["series"].items():
                gathered.setdefault(name, []).extend((step, value) for step, value in points)
            cursor, more = page["cursor"], page["more"]
        return gathered
