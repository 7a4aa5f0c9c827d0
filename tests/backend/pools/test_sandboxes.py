"""A job that needs a sandbox waits if the pool's hosts report that they have none; other jobs do not."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from backend.accounts.models import Project, User
from backend.jobs.queue.explain import explain_wait
from backend.jobs.queue.scheduling import schedule_pool
from backend.pages import words
from backend.pages.new_job.forms import JobForm
from backend.pools.clusters.sandboxes import lacks_sandbox
from backend.pools.decision.decide import decide
from backend.pools.models import ClusterProbe, Reservation, ResourcePool
from engine.spec.environments.sandbox import NO_SANDBOX, SANDBOX_LABEL
from engine.spec.job import JobSpec
from tests.backend.conftest import NOW
from tests.backend.pools.decision.decide_world import job as waiting_job
from tests.backend.pools.decision.decide_world import pool as pool_of

SANDBOXED = {"environment": {"name": "reasoning_gym"}}


def host(word: str | None, cpus: float = 8.0) -> dict[str, Any]:
    labels = {} if word is None else {SANDBOX_LABEL: word}
    return {"id": f"{word}{cpus}", "name": "node", "labels": labels, "cpus": cpus, "gpus": 0.0}


def see(pool: ResourcePool, now: datetime, *hosts: dict[str, Any]) -> None:
    ClusterProbe.objects.update_or_create(pool=pool, defaults={"at": now, "seen_at": now, "hosts": list(hosts)})


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([], False),
        ([host(None)], False),
        ([host(NO_SANDBOX), host(None)], False),
        ([host(NO_SANDBOX), host("bubblewrap")], False),
        ([host(NO_SANDBOX)], True),
        ([host(NO_SANDBOX), host(NO_SANDBOX, cpus=64.0)], True),
        ([host(NO_SANDBOX), host("bubblewrap", cpus=0.0)], True),
        ([host(NO_SANDBOX, cpus=0.0)], False),
    ],
    ids=["no host", "silent", "one silent", "one has", "none has", "neither has", "a head has", "a head alone"],
)
def test_pool_lacks_sandbox_if_every_working_host_reports_none(
    hosts: list[dict[str, Any]], expected: bool, pool: ResourcePool, now: datetime
) -> None:
    assert not lacks_sandbox(pool), "its Ray was never seen"
    see(pool, now, *hosts)
    assert lacks_sandbox(pool) is expected


def test_job_waits_for_a_sandbox_and_blocks_no_other(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    see(pool, now, host(NO_SANDBOX))
    confined, plain = make_job(devices=4, **SANDBOXED), make_job(devices=4, at=now + timedelta(seconds=1))
    assert schedule_pool(pool.pk, now=now) == 1
    confined.refresh_from_db()
    assert (confined.state, confined.reason) == ("queued", "no_sandbox")
    assert "sandbox" in confined.message and pool.name in confined.message
    assert set(Reservation.objects.values_list("job", flat=True)) == {plain.pk}
    reason = explain_wait(confined, now=now)
    assert reason is not None and (reason.reason, reason.starts_at, reason.smaller) == ("no_sandbox", None, None)
    see(pool, now, host(NO_SANDBOX), host("bubblewrap"))
    assert schedule_pool(pool.pk, now=now) == 1


def test_preview_and_form_say_it_before_anything_is_submitted(
    api: Any, pool: ResourcePool, project: Project, alice: User, client: Client
) -> None:
    see(pool, NOW, host(NO_SANDBOX))
    seen = api.post("/jobs:preview", {"spec": {"name": "x"} | SANDBOXED}).json()
    assert (seen["starts_at_once"], seen["reason"]) == (False, "no_sandbox") and "sandbox" in seen["message"]
    assert api.post("/jobs:preview", {"spec": {"name": "x"}}).json()["starts_at_once"]
    form = JobForm.showing(JobSpec.model_validate({"name": "x"} | SANDBOXED)).texts
    client.force_login(alice)
    sent = urlencode({**form, "target": f"{project.pk}/{pool.pk}", "preview": "1"})
    page = client.post("/jobs/new", sent, content_type="application/x-www-form-urlencoded").content.decode()
    assert f"would wait: {words.REASONS['no_sandbox']}" in page


def test_job_without_sandbox_is_overtaken() -> None:
    first, second = replace(waiting_job("a", 8), lacks_sandbox=True), waiting_job("b", 8)
    decision = decide(pool_of(first, second))
    assert [each.job for each in decision.admissions] == ["b"] and decision.reasons == {"a": "no_sandbox"}
