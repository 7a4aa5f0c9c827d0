"""Somebody with an API key: submits jobs and watches them, however long the servers behind the API need to return."""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from frontend.client.laminar_client import Laminar
from infra.local.home import PROJECT
from tests.waiting import eventually

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

        def post() -> tuple[int, str]:
            response = self.client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": key})
            return response.status_code, response.text

        return _content(post, "the site accepts the job", status=202, within_s=within_s)

    def upload(self, path: Path, *, kind: str, name: str) -> None:
        key = str(self.client.headers["Authorization"]).removeprefix("Bearer ")
        with Laminar(str(self.client.base_url), key) as client:
            assert client.assets.upload(path, kind=kind, name=name).state == "ready"

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """An answer, however long the servers behind it take to come back."""

        def get() -> tuple[int, str]:
            response = self.client.get(f"/api/v1{path}", params=params)
            return response.status_code, response.text

        return _content(get, f"the site answers GET {path}", status=200, within_s=self.patience_s)

    def wait(self, job_id: str, condition: Callable[[dict[str, Any]], bool], *, within_s: float) -> dict[str, Any]:

        def job() -> dict[str, Any]:
            job = self.get(f"/jobs/{job_id}")
            message = f"{job['state']} at step {job['step']}: {job['failure_class']} {job['message']}"
            assert condition(job) or job["state"] not in TERMINAL, message
            return job

        return eventually(job, f"{job_id} fulfils the condition", until=condition, within_s=within_s, every_s=0.3)

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


def _content(request: Callable[[], tuple[int, str]], what: str, *, status: int, within_s: float) -> dict[str, Any]:
    """Of the first response with this status."""
    _, text = eventually(
        request,
        what,
        until=lambda response: response[0] == status,
        ignoring=(httpx.TransportError,),
        within_s=within_s,
        every_s=0.2,
    )
    content: dict[str, Any] = json.loads(text)
    return content
