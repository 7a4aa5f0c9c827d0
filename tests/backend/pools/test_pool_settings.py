"""Pools' settings by operators: what a change must not affect, who may make it, and what it records."""

from typing import Any

import pytest
from django.db import connection

from backend.accounts.models import ApiKey, Project, User
from backend.accounts.signing_in.chains import SITE
from backend.audit.models import AuditEntry
from backend.jobs.models import JobAttempt, OutboxMessage
from backend.pools.models import ResourcePool
from tests.backend.conftest import Api, MakeKey

EAST = "http://east.example.org:8265"
NEW = {"name": "H100s", "flavor": "H100", "capacity": 16, "device": "gpu", "labels": {"accelerator": "H100"}}


@pytest.fixture
def operator(alice: User, make_key: MakeKey) -> Api:
    """A client with an operator's key."""
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    return Api(make_key(alice, scopes=("quota:write", "jobs:read")))


def change(api: Api, pool: ResourcePool, body: Any, **headers: str) -> Any:
    sent = {"Authorization": f"Bearer {api.key}"} | headers
    path = f"/api/v1/pools/{pool.pk}/settings"
    return api.client.patch(path, data=body, content_type="application/json", headers=sent)


def test_operator_creates_pool_and_moves_it_to_its_own_ray(operator: Api) -> None:
    created = operator.post("/pools", NEW)
    assert created.status_code == 201, created.content
    pool = ResourcePool.objects.get(pk=created.json()["id"])
    assert (pool.labels, pool.device, pool.ray_url) == ({"accelerator": "H100"}, "gpu", "")
    moved = change(operator, pool, {"ray_url": EAST + "/", "ray_token": "east"})
    assert moved.status_code == 200, moved.content
    shown = operator.get(f"/pools/{pool.pk}/settings")
    assert shown.json() == NEW | {
        "id": pool.pk, "ray_url": EAST, "ray_token": "east", "device_gb": None, "is_open": True, "autoscales": False,
        "probe": None, "drained": [], "num_drained": 0,
    }  # fmt: skip
    assert shown["ETag"] == moved["ETag"] != created["ETag"]
    entries = AuditEntry.objects.filter(team=SITE).order_by("seq").values_list("action", "actor", "data")
    key = f"key:{ApiKey.objects.get().pk}"
    assert [(action, actor) for action, actor, _ in entries] == [("pool.created", key), ("pool.changed", key)]
    assert entries[1][2] == {
        "before": {"ray_url": "", "ray_token": ""},
        "after": {"ray_url": EAST, "ray_token": "east"},
    }


def test_omitted_fields_stay_and_scheduler_is_notified(operator: Api, pool: ResourcePool) -> None:
    OutboxMessage.objects.all().delete()
    assert change(operator, pool, {"is_open": False, "device": "cpu"}).status_code == 200
    assert change(operator, pool, {"device": None, "device_gb": 80}).status_code == 200
    pool.refresh_from_db()
    assert (pool.is_open, pool.device, pool.device_gb, pool.capacity) == (False, "", 80, 8)
    assert OutboxMessage.objects.filter(topic="schedule", key=pool.pk).exists()
    assert change(operator, pool, {"capacity": None}).status_code == 422


def test_ray_of_busy_pool_changes_only_if_jobs_move_too(operator: Api, pool: ResourcePool, attempt: JobAttempt) -> None:
    refused = change(operator, pool, {"ray_url": EAST})
    assert (refused.status_code, refused.json()["code"]) == (409, "pool_in_use")
    assert "jobs hold 3 devices" in refused.json()["errors"][0]["message"]
    assert change(operator, pool, {"labels": {"zone": "a"}}).status_code == 200, "this applies to later attempts"
    assert change(operator, pool, {"ray_url": EAST, "moves_running_jobs": True}).status_code == 200
    pool.refresh_from_db()
    assert pool.ray_url == EAST
    assert AuditEntry.objects.latest("seq").data["moves_running_jobs"] is True


def test_a_pool_does_not_shrink_below_what_is_promised_or_held(
    operator: Api, pool: ResourcePool, attempt: JobAttempt
) -> None:
    refused = change(operator, pool, {"capacity": 7})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (409, "/capacity")
    pool.quotas.filter(team=attempt.job.team).update(nominal=3)
    assert change(operator, pool, {"capacity": 2}).status_code == 409
    assert change(operator, pool, {"capacity": 3}).status_code == 200
    connection.check_constraints()


def test_concurrent_change_is_not_overwritten(operator: Api, pool: ResourcePool) -> None:
    seen = operator.get(f"/pools/{pool.pk}/settings")["ETag"]
    assert change(operator, pool, {"capacity": 9}, **{"If-Match": seen}).status_code == 200
    assert change(operator, pool, {"capacity": 10}, **{"If-Match": seen}).status_code == 412


@pytest.mark.parametrize(
    "body",
    [
        *({"ray_url": "http://me:secret@ray"}, {"ray_url": "ray:8265"}, {"ray_url": "file:///etc/passwd"}),
        *({"ray_token": "east"}, {"ray_url": EAST, "ray_token": "../site"}, {"ray_url": EAST, "ray_token": "a/b"}),
        *({"labels": {"zone": "="}}, {"labels": {"": "a"}}, {"labels": []}, {"device": "tpu"}, {"capacity": -1}),
        *({"name": ""}, {"name": "a\nb"}, {"capacity": 10**9}, {"token": "x"}, {"autoscales": True}),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(operator: Api, pool: ResourcePool, body: Any) -> None:
    answer = change(operator, pool, body)
    assert answer.status_code == 422, answer.content
    assert b"secret" not in answer.content
    before = pool.version
    pool.refresh_from_db()
    assert pool.version == before and not AuditEntry.objects.exists()


def test_two_pools_have_two_names(operator: Api, pool: ResourcePool) -> None:
    refused = operator.post("/pools", NEW | {"name": pool.name})
    assert (refused.status_code, refused.json()["code"]) == (409, "name_taken")
    assert operator.post("/pools", NEW).status_code == 201
    assert change(operator, pool, {"name": "H100s"}).status_code == 409


def test_a_key_of_one_project_makes_no_pool(operator: Api, project: Project) -> None:
    ApiKey.objects.update(project=project)
    assert operator.post("/pools", NEW).status_code == 403
    assert operator.get("/pools").status_code == 200
