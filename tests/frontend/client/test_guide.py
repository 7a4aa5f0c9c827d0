"""The guide for programs: its figures match the server's responses, and its examples run unchanged."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import yaml
from django.conf import settings as django_settings
from django.db import transaction
from django.test import Client

from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.pages.programs.guide import EXAMPLES, IDEMPOTENT, example, wheel_url
from backend.rest import api
from backend.webhooks.secret_box import new_secret, signature_header
from frontend.client.laminar_client.cli.commands import laminar
from tests.frontend.client.conftest import CLIENT
from tests.frontend.conftest import Server
from tests.frontend.seed import World, ended, submitted, trained
from tests.waiting import eventually


def loaded(name: str) -> ModuleType:
    """The example, saved to a file."""
    found = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def environment(server: Server, key: str, tmp_path: Path, **more: str) -> Mapping[str, str]:
    return {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT), "HOME": str(tmp_path),
        "LAMINAR_URL": server.url, "LAMINAR_API_KEY": key, **more,
    }  # fmt: skip


def learn(world: World, job: Job) -> None:
    """Acts as scheduler and engine, through an engine's facts."""
    now = datetime.now(UTC)
    assert schedule_pool(world.pool.pk, now=now) == 1
    with transaction.atomic():
        locked = locked_job(job.pk)
        change_state(locked, JobState.RUNNING, actor="engine:1", now=now, phase="training")
    trained(world, locked, 1)
    ended(locked, JobState.SUCCEEDED, message="All steps are done.")


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_rates_are_those_of_the_answers(world: World, key: str, settings: Any, scale: float) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, rate_scale=scale)
    client = Client(headers={"Authorization": f"Bearer {key}"})
    page = client.get("/docs/api").content.decode()
    told = {
        policy: f'"{policy}";q={most.replace(",", "")};w={window}'
        for most, window, policy in re.findall(r"<td>([\d,]+) in (\d+) s</td><td><code>([\w-]+)<", page)
    }
    assert len(told) == page.count("<tr><td>") > 0
    for policy, answer in {
        "read": client.get("/api/v1/jobs"),
        "write": client.post("/api/v1/jobs:preview", {"spec": {}}, content_type="application/json"),
        "submit": client.post("/api/v1/jobs", {}, content_type="application/json"),
    }.items():
        assert answer["RateLimit-Policy"] == told[policy]


@pytest.mark.long
def test_guide_lists_idempotent_routes_of_the_schema() -> None:
    paths: dict[str, Any] = api.get_openapi_schema()["paths"]
    taking = {
        f"{method.upper()} {path}"
        for path, operations in paths.items()
        for method, operation in operations.items()
        if any(each["name"].lower() == "idempotency-key" for each in operation.get("parameters", ()))
    }
    assert set(IDEMPOTENT) == taking


def test_guide_has_every_example_despite_python_caches(world: World) -> None:
    (EXAMPLES / "__pycache__").mkdir(exist_ok=True)
    page = Client().get("/docs/api").content.decode()
    for path in filter(Path.is_file, EXAMPLES.iterdir()):
        last = example(path.name).strip().splitlines()[-1].strip()
        assert last.split('"')[0] in page, path.name


@pytest.mark.long
@pytest.mark.parametrize("name", ["submit_job.py", "submit_by_curl.sh"])
def test_a_submitting_example_runs_as_it_stands(
    name: str, server: Server, world: World, key: str, tmp_path: Path
) -> None:
    program = "bash" if name.endswith(".sh") else sys.executable
    run = subprocess.Popen(
        [program, str(EXAMPLES / name)], env=environment(server, key, tmp_path, LAMINAR_LOOK_EVERY="0.2"),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        eventually(Job.objects.exists, "the example submits a job", process=run)
        job = Job.objects.get()
        learn(world, job)
        told, complaints = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 0, complaints
    assert "reward/mean" in told if program == "bash" else "succeeded" in told


def test_the_example_of_pages_reads_the_whole_list_once(server: Server, world: World, key: str, tmp_path: Path) -> None:
    jobs = [submitted(world) for _ in range(5)]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "every_page.py")], env=environment(server, key, tmp_path), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert [line.split()[0] for line in done.stdout.splitlines()] == [job.pk for job in reversed(jobs)]


def test_the_verifying_example_takes_our_messages_and_no_others() -> None:
    is_ours = loaded("verify_webhook").is_ours
    secret, former, body = new_secret(), new_secret(), '{"type": "job.succeeded", "name": "Größe"}'
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1000",
        "webhook-signature": signature_header("msg_1", 1_000, body, secrets_in_use=[secret, former]),
    }
    ours = partial(is_ours, headers=headers, body=body.encode(), now=1_010.0)
    assert ours(secret) and ours(former)
    assert not ours(new_secret())
    assert not ours(secret, body=body.encode() + b" ")
    assert not ours(secret, now=1_000 + 3_600.0), "somebody kept it"
    for name, value in {"webhook-id": "msg_2", "webhook-timestamp": "1001", "webhook-signature": "v1,AAAA"}.items():
        assert not ours(secret, headers=headers | {name: value}), name
    assert not ours(secret, headers={})


def test_the_patient_example_keeps_what_the_server_says(tmp_path: Path) -> None:
    answers = [(429, "7"), (503, None), (409, "1"), (400, None)]

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, wait = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if wait:
                self.send_header("Retry-After", wait)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Drops the server's request log."""

    waits: list[float] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as busy:
        threading.Thread(target=busy.serve_forever, args=[0.02], daemon=True).start()
        url = f"http://127.0.0.1:{busy.server_address[1]}/"
        answer = loaded("patient").patiently(lambda: httpx.get(url), sleep=waits.append)
        busy.shutdown()
    assert answer.status_code == 400, "what is wrong stays wrong"
    assert waits[0] == 7 and 1 <= waits[1] <= 2 and waits[2] == 1


def test_the_workflow_calls_commands_that_there_are() -> None:
    workflow = yaml.safe_load(example("laminar.yml"))
    (job,) = workflow["jobs"].values()
    script = "\n".join(step.get("run", "") for step in job["steps"])
    assert f'pip install "{wheel_url()}"' in script
    used = re.findall(r"laminar (\w+)((?: --[\w-]+)?)", re.sub(r"spec\.json ", "", script))
    assert {name for name, _ in used} == {"submit", "wait"} <= set(laminar.commands)
    options = {option for name, _ in used for each in laminar.commands[name].params for option in each.opts}
    assert {option.strip() for _, option in used if option} <= options
    assert django_settings.ENVIRONMENT.public_url in wheel_url()
