"""Idempotency-Key: a repeated request has one effect and gets the same response."""

import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from backend.accounts.models import Project, Team, User
from backend.api.idempotency import forget_expired_keys
from backend.api.models import IdempotencyKey
from backend.clock import database_now
from backend.jobs.models import Job
from backend.pools.models import ResourcePool


@pytest.fixture
def body(project: Project, pool: ResourcePool) -> dict[str, Any]:
    return {"project": project.pk, "spec": {"name": "Sums"}}


def test_the_answer_is_given_again(api: Any, body: Any) -> None:
    first, second = api.post("/jobs", body, key="k1"), api.post("/jobs", body, key="k1")
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json() and first["Location"] == second["Location"]
    assert "Idempotency-Replayed" not in first and second["Idempotency-Replayed"] == "true"
    assert Job.objects.count() == 1


def test_the_answer_is_the_first_one_though_the_job_moved_on(api: Any, body: Any) -> None:
    job = api.post("/jobs", body, key="k1").json()
    api.post(f"/jobs/{job['id']}/cancel")
    assert api.post("/jobs", body, key="k1").json()["state"] == "queued"


def test_another_body_under_the_same_key_is_refused(api: Any, body: Any) -> None:
    api.post("/jobs", body, key="k1")
    response = api.post("/jobs", body | {"pool": "small"}, key="k1")
    assert (response.status_code, response.json()["code"]) == (422, "key_reused")
    assert Job.objects.count() == 1


def test_another_key_or_none_is_another_job(api: Any, body: Any) -> None:
    for key in ("k1", "k2", None, None):
        assert api.post("/jobs", body, key=key).status_code == 202
    assert Job.objects.count() == 4


def test_a_refused_request_leaves_the_key_free(api: Any, body: Any) -> None:
    refused = body | {"project": "proj_unknown"}
    assert api.post("/jobs", refused, key="k1").status_code == 404
    assert not IdempotencyKey.objects.exists()
    assert api.post("/jobs", body, key="k1").status_code == 202


def test_another_team_may_use_the_same_key(
    api: Any, api_of: Any, body: Any, charlie: User, other_project: Project
) -> None:
    mine = api.post("/jobs", body, key="k1").json()
    spec = {"name": "Sums", "placement": {"preemptible": True}}  # their team has borrowed devices only
    theirs = api_of(charlie).post("/jobs", {"project": other_project.pk, "spec": spec}, key="k1").json()
    assert mine["id"] != theirs["id"] and theirs["project"] == other_project.pk


def test_response_of_expired_key_is_forgotten(api: Any, body: Any) -> None:
    """A new request of any kind takes over its row."""
    first = api.post("/jobs", body, key="k1").json()
    row = IdempotencyKey.objects.get()
    IdempotencyKey.objects.update(expires_at=row.created_at)
    second = api.post("/jobs", body | {"pool": "small"}, key="k1")
    assert second.status_code == 202 and second.json()["id"] != first["id"]
    assert api.post("/jobs", body | {"pool": "small"}, key="k1").json() == second.json()
    assert api.post("/jobs", body, key="k1").json()["code"] == "key_reused"
    assert IdempotencyKey.objects.get().expires_at > row.expires_at


def test_twin_waits_briefly_and_other_requests_not_at_all(
    transactional_db: None, api: Any, body: Any, team: Team
) -> None:
    held = {"team_id": team.pk, "key": "k1", "method": "POST", "path": "/api/v1/jobs", "body_sha256": "0" * 64}
    now = database_now()
    with psycopg.connect(the_database()) as other:  # the same request is in progress
        columns = [*held, "location", "created_at", "expires_at"]
        other.execute(
            f"INSERT INTO api_idempotencykey ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})",
            [*held.values(), "", now, now + timedelta(days=1)],
        )
        began = time.monotonic()
        refused = api.post("/jobs", body, key="k1")
        assert 0.25 < time.monotonic() - began < 30
        assert (refused.status_code, refused.json()["code"]) == (409, "in_flight")
        assert api.post("/jobs", body, key="k2").status_code == 202
        other.rollback()
    assert api.post("/jobs", body, key="k1").status_code == 202
    assert Job.objects.count() == 2


def the_database() -> str:
    parameters = connection.settings_dict
    return f"postgresql://{parameters['USER']}:{parameters['PASSWORD']}@{parameters['HOST']}:{parameters['PORT']}/{parameters['NAME']}"


def test_a_key_lives_for_a_day(api: Any, body: Any) -> None:
    api.post("/jobs", body, key="k1")
    row = IdempotencyKey.objects.get()
    assert row.expires_at - row.created_at == timedelta(hours=24)
    IdempotencyKey.objects.update(expires_at=row.created_at)
    assert "Idempotency-Replayed" not in api.post("/jobs", body, key="k1")
    assert Job.objects.count() == 2
    assert forget_expired_keys(now=row.expires_at + timedelta(minutes=1)) == 1
