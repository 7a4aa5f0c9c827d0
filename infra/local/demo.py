"""The first job: submitted through the public REST API like anybody else's, and watched in the terminal."""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from infra.local.errors import LocalError
from infra.local.home import PROJECT, Home, read_json

TERMINAL = {"succeeded", "failed", "cancelled"}
POLL_S = 1.0
PLAIN_EVERY_S = 10.0


@dataclass(slots=True)
class Watch:
    """The state of the job, gathered from the API's answers."""

    job: Mapping[str, Any]
    cursor: int = 0
    series: dict[str, dict[int, float]] = field(default_factory=dict)

    def newest(self, name: str) -> float | None:
        points = self.series.get(name)
        return points[max(points)] if points else None

    def held_out(self) -> list[float]:
        points = self.series.get("evaluation/reward", {})
        return [points[version] for version in sorted(points)]

    @property
    def is_over(self) -> bool:
        return self.job["state"] in TERMINAL


def run_demo(home: Home, *, seed: int, schedule: str, steps: int | None) -> int:
    local = read_json(home.local_json)
    if local is None:
        raise LocalError("the site is up, but .laminar/local.json is missing; `make down`, then `make demo` again")
    console, begun = Console(), time.monotonic()
    headers = {"Authorization": f"Bearer {local['api_key']}"}
    with httpx.Client(base_url=local["url"], headers=headers, timeout=30) as client:
        job = submit(client, local["project"], seed=seed, schedule=schedule, steps=steps)
        page = f"{local['url']}/jobs/{job['id']}/"
        console.print(f"\nsubmitted {job['id']}; watch it at {page}")
        console.print(f"sign in as {local['user']} with {local['password']}\n")
        watch = Watch(job=job)
        try:
            _follow(client, watch, console, page, begun)
        except KeyboardInterrupt:
            console.print(
                f"\nthe job keeps running. Cancel it on its page, or with:\n  {_cancel_command(local, job['id'])}"
            )
            return 130
    return _summary(watch, console, page, local, time.monotonic() - begun)


def submit(client: httpx.Client, project: str, *, seed: int, schedule: str, steps: int | None) -> Mapping[str, Any]:
    spec = json.loads((PROJECT / "engine" / "spec" / "templates" / "running_sums.json").read_text())
    spec["name"] = f"Running sums, {schedule}, seed {seed}"
    spec["training"]["seed"], spec["schedule"]["name"] = seed, schedule
    if steps is not None:
        spec["training"]["steps"] = steps
    key = str(uuid.uuid4())
    return _patiently(
        client, "POST", "/api/v1/jobs", json={"project": project, "spec": spec}, headers={"Idempotency-Key": key}
    )


def _patiently(client: httpx.Client, method: str, path: str, **arguments: Any) -> Mapping[str, Any]:
    """One call that outlives a restart of the web server: the same request again, until it is answered."""
    deadline = time.monotonic() + 120
    while True:
        try:
            answer = client.request(method, path, **arguments)
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise LocalError("the web server has not responded for two minutes; see `make status`") from None
            time.sleep(POLL_S)
            continue
        if answer.status_code >= 500 and time.monotonic() < deadline:
            time.sleep(POLL_S)
            continue
        if answer.is_error:
            raise LocalError(f"{method} {path} returned {answer.status_code}: {answer.text[:1000]}")
        content: Mapping[str, Any] = answer.json()
        return content


def _pull(client: httpx.Client, watch: Watch) -> None:
    path = f"/api/v1/jobs/{watch.job['id']}"
    watch.job = _patiently(client, "GET", path)
    more = True
    while more:
        page = _patiently(client, "GET", f"{path}/metrics", params={"after": watch.cursor})
        for name, points in page["series"].items():
            watch.series.setdefault(name, {}).update({int(step): value for step, value in points})
        watch.cursor, more = page["cursor"], page["more"]


def _follow(client: httpx.Client, watch: Watch, console: Console, page: str, begun: float) -> None:
    if not console.is_terminal:
        told_at = float("-inf")
        while not watch.is_over:
            _pull(client, watch)
            if time.monotonic() - told_at >= PLAIN_EVERY_S or watch.is_over:
                told_at = time.monotonic()
                print(_line(watch, time.monotonic() - begun), flush=True)
            time.sleep(POLL_S)
        return
    with Live(console=console, refresh_per_second=4) as live:
        while not watch.is_over:
            _pull(client, watch)
            live.update(_panel(watch, page, time.monotonic() - begun))
            time.sleep(POLL_S)


def _line(watch: Watch, elapsed_s: float) -> str:
    job = watch.job
    parts = [f"{elapsed_s:5.0f} s", f"{job['state']:<9}", f"step {job['step']}/{job['steps']}"]
    parts += [f"{label} {value}" for label, value in _figures(watch)]
    parts += [job["message"]] if job["state"] != "running" and job["message"] else []
    return "  ".join(parts)


def _figures(watch: Watch) -> list[tuple[str, str]]:
    shown = (("reward", "reward/mean", ".2f"), ("tokens/s", "throughput/tokens_per_s", ",.0f"),
             ("staleness", "staleness/mean", ".1f"))  # fmt: skip
    return [(label, format(value, form)) for label, name, form in shown if (value := watch.newest(name)) is not None]


def _panel(watch: Watch, page: str, elapsed_s: float) -> Table:
    job = watch.job
    table = Table.grid(padding=(0, 2))
    table.add_row("state", Text(f"{job['state']} {job['phase'] or job['reason']}"))
    if job["state"] != "running":
        table.add_row("", Text(job["message"]))
    bar = ProgressBar(total=job["steps"], completed=job["step"], width=40)
    table.add_row("step", f"{job['step']}/{job['steps']}")
    table.add_row("", bar)
    for label, value in _figures(watch):
        table.add_row(label, value)
    table.add_row("elapsed", f"{elapsed_s:.0f} s")
    table.add_row("page", Text(page))
    return table


def _summary(watch: Watch, console: Console, page: str, local: Mapping[str, Any], elapsed_s: float) -> int:
    job, held_out = watch.job, watch.held_out()
    if job["state"] != "succeeded":
        console.print(f"\nthe job {job['state']} after {elapsed_s:.0f} s: {job['failure_class']} {job['message']}")
        console.print(f"see its events: {page}")
        return 1
    console.print(f"\ndone in {elapsed_s:.0f} s: {job['step']} steps, attempt {job['attempt']}")
    if len(held_out) >= 2:
        before, after = held_out[0], held_out[-1]
        console.print(f"held-out reward {before:.3f} before, {after:.3f} after ({after - before:+.3f})")
    console.print(f"\nthe site stays up at {local['url']}; sign in as {local['user']} with {local['password']}")
    console.print("`make down` stops it")
    return 0


def _cancel_command(local: Mapping[str, Any], job_id: str) -> str:
    return f'curl -X POST -H "Authorization: Bearer {local["api_key"]}" {local["url"]}/api/v1/jobs/{job_id}/cancel'
