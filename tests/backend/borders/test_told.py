"""Texts for tenants contain no host path, no process, no line of Laminar's code and no terminal colour, wherever the
engine reported them.

A canary path is put into every text that an engine and Ray may report; then every route of the tenant is read.
"""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from django.conf import LazySettings
from django.test import Client
from django.urls import NoReverseMatch, reverse

from backend.accounts.models import User
from backend.checkpoints.models import Checkpoint
from backend.jobs.attempts.ending import end_unreported
from backend.jobs.lifecycle import locked_job
from backend.jobs.models import Job, JobAttempt
from backend.telemetry.intake.ingest import ingest_facts
from backend.webhooks.models import WebhookDelivery
from engine.spec.control import FactBatch
from tests.backend.checkpoint_addresses import checkpoint_address
from tests.backend.conftest import NOW, Api
from tests.backend.tenant_world import OPERATOR, PAGES, ROWS

CANARY: Final = "canaryhost"
FOLDER: Final = f"/srv/{CANARY}/laminar"
RAY: Final = f"\x1b[36mray::Body.run()\x1b[39m (pid=4711, ip=10.0.0.7, repr=<{CANARY}.Body object at 0x7f>)"
"""As Ray formats an actor's error; the engine's facts hold \ufffd for its control characters."""
OURS: Final = f"""{RAY.replace(chr(27), chr(0xFFFD))}
Traceback (most recent call last):
  File "{FOLDER}/engine/live/run/attempt.py", line 88, in run
    raise_from_{CANARY}(self)
    ^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/box/main.py", line 3, in respond
    return 1 / zero
           ~~^~~~~~
ZeroDivisionError: division by zero in file://{FOLDER}/models/big"""
DETAILS: Final = re.compile(
    r"pid=|4711|\[3[69]m|Traceback \(most recent call last\):(?!.{1,4}  File .{1,6}/box/)", re.DOTALL
)


@pytest.fixture
def told(attempt: JobAttempt, job: Job, settings: LazySettings) -> Job:
    """A job whose engine reported everything it can, with the canary, and died."""
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_dir=Path(FOLDER) / "store")
    at = NOW.isoformat()
    bodies: list[dict[str, Any]] = [
        {"type": "pipeline_ready", "num_replicas": 2, "num_parameters": 1},
        {"type": "step_trained", "step": 1, "metrics": {"loss": 1.0}},
        {"type": "checkpoint_saved", "step": 1, "version": 1, "num_bytes": 1, "manifest_sha256": "a" * 64,
         "uri": checkpoint_address(attempt, 1)},
        {"type": "fault_detected", "component": "rollout/0", "message": OURS, "action": f"see {FOLDER}/logs"},
        {"type": "trajectories_sampled", "step": 1, "trajectories": [
            {"prompt_ordinal": 1, "sample": 0, "version": 0, "staleness": 0, "num_tokens": 1, "reward": 0.0,
             "advantage": 0.0, "outcome": "error", "prompt": "2 + 2", "response": "4", "remark": OURS, "end": "failed",
             "reason": OURS},
        ]},
        {"type": "log_lines", "component": "trainer", "lines": [
            {"at": at, "level": "error", "message": f"failed\n{OURS}"},
            {"at": at, "level": "info", "message": "part=trainer host=h pid=4711"},
            {"at": at, "level": "info", "message": f"reading {FOLDER}/models/big/config.json"},
        ]},
    ]  # fmt: skip
    facts = [{"seq": n, "at": at, "body": body} for n, body in enumerate(bodies, start=1)]
    batch = FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": facts})
    ingest_facts(attempt, batch, now=NOW)
    Checkpoint.objects.update(message=f"It cannot be read from here: {FOLDER}/store is away")
    end_unreported(
        locked_job(job.pk), JobAttempt.objects.get(pk=attempt.pk), outcome="lost", actor="reconciler", now=NOW,
        message=f"Ray says: {FOLDER}/ray exited", log_tail=f"{RAY}\n(Driver pid=4711) failed\n{OURS}",
    )  # fmt: skip
    job.refresh_from_db()
    return job


def asked_of_a_job() -> list[str]:
    return [key.removeprefix("GET ") for key in ROWS if key.startswith("GET /jobs") and "stream" not in key]


def test_no_route_reveals_internal_paths(told: Job, api: Api) -> None:
    read = ""
    for path in [*asked_of_a_job(), "/checkpoints", "/audit-log"]:
        if "trajectory_id" not in path:
            answer = api.get(path.format(job_id=told.pk))
            assert answer.status_code == 200, (path, answer.content)
            assert CANARY.encode() not in answer.content, path
            read += answer.content.decode()
    assert "division by zero" in read and 'main.py\\", line 3, in respond' in read, "a customer's own error is shown"
    refuse_details(read)
    assert f"jobs/{told.pk}/attempt-1-fence-1/checkpoints/step-000001" in read
    assert "reading \\u2026/config.json" in read


@pytest.mark.long
def test_no_page_does_either(told: Job, alice: User) -> None:
    client = Client()
    client.force_login(alice)
    seen = 0
    for name in [name for name, page in PAGES.items() if page.method == "GET" and page.may != OPERATOR]:
        address = address_of(name, told)
        if address is None:
            continue
        answer = client.get(address)
        seen += answer.status_code == 200
        assert answer.status_code in {200, 302}, name
        assert CANARY not in answer.content.decode(), name
        refuse_details(answer.content.decode())
    assert seen >= 15


def refuse_details(text: str) -> None:
    assert not DETAILS.search(text), DETAILS.findall(text)


def address_of(page: str, job: Job) -> str | None:
    """None: it belongs to something other than the team or this job."""
    for arguments in ({}, {"job_id": job.pk}):
        with suppress(NoReverseMatch):
            return reverse(page, kwargs=arguments)
    return None


def test_no_message_to_a_teams_own_server_does(told: Job) -> None:
    assert not WebhookDelivery.objects.filter(body__contains=CANARY).exists()
    assert not told.events.filter(message__contains=CANARY).exists()
    assert not told.events.filter(data__icontains=CANARY).exists()
