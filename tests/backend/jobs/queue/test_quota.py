"""Quotas over REST: what a team sees, what an operator changes, and which promises are refused."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from django.db import connection

from backend.accounts.models import Team, User
from backend.audit.models import AuditEntry
from backend.jobs.models import Job, JobAttempt, OutboxMessage
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.models import ResourcePool, TeamQuota
from backend.pools.selectors import most_of
from tests.backend.conftest import Api, MakeKey


@pytest.fixture
def operator(alice: User, make_key: MakeKey) -> Api:
    """An API client of a platform operator."""
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    return Api(make_key(alice, scopes=("quota:write", "usage:read", "jobs:read")))


def put(api: Api, path: str, body: Any, **headers: str) -> Any:
    sent = {"Authorization": f"Bearer {api.key}"} | headers
    return api.client.put(f"/api/v1{path}", data=body, content_type="application/json", headers=sent)


def test_team_sees_its_own_quota_in_every_pool(
    api_of: Callable[[User], Api], make_key: MakeKey, alice: User, attempt: JobAttempt, pool: ResourcePool
) -> None:
    other = ResourcePool.objects.create(name="zoo", flavor="cpu", capacity=4)
    TeamQuota.objects.create(pool=other, team=attempt.job.team, nominal=1, borrow_limit=2, lend_limit=0, weight=2.0)
    rows = Api(make_key(alice, scopes=("usage:read",))).get("/quota").json()["data"]
    assert [(row["pool_name"], row["nominal"], row["used"], row["borrowed"]) for row in rows] == [
        ("small", 8, 3, 0),
        ("zoo", 1, 0, 0),
    ]
    assert (rows[1]["borrow_limit"], rows[1]["lend_limit"], rows[1]["weight"]) == (2, 0, 2.0)


def test_operator_quota_change_triggers_the_scheduler(
    operator: Api, pool: ResourcePool, team: Team, other_team: Team
) -> None:
    OutboxMessage.objects.all().delete()
    path = f"/pools/{pool.pk}/quotas/{team.pk}"
    answer = put(operator, path, {"nominal": 5, "borrow_limit": 1})
    assert answer.status_code == 200, answer.content
    shown = {"team": team.pk, "team_name": "Ants", "nominal": 5, "borrow_limit": 1, "lend_limit": None, "weight": 1.0}
    assert answer.json() == shown | {"used": 0, "borrowed": 0}
    assert OutboxMessage.objects.get(topic="schedule").key == pool.pk
    entry = AuditEntry.objects.get(team=team)
    assert (entry.action, entry.data["before"]["nominal"], entry.data["after"]["nominal"]) == ("quota.changed", 8, 5)
    rows = operator.get(f"/pools/{pool.pk}/quotas").json()["data"]
    assert [(row["team_name"], row["nominal"]) for row in rows] == [("Ants", 5), ("Bees", 0)]


def test_concurrent_quota_change_is_not_overwritten(
    operator: Api, pool: ResourcePool, team: Team, other_team: Team
) -> None:
    seen = operator.get(f"/pools/{pool.pk}/quotas")["ETag"]
    mine, yours = f"/pools/{pool.pk}/quotas/{team.pk}", f"/pools/{pool.pk}/quotas/{other_team.pk}"
    first = put(operator, mine, {"nominal": 4}, **{"If-Match": seen})
    assert first.status_code == 200
    stale = put(operator, yours, {"nominal": 4}, **{"If-Match": seen})
    assert (stale.status_code, stale.json()["code"], stale["ETag"]) == (412, "changed_meanwhile", first["ETag"])
    assert TeamQuota.objects.get(team=other_team).nominal == 0
    assert put(operator, yours, {"nominal": 4}, **{"If-Match": first["ETag"]}).status_code == 200


def test_quotas_cannot_exceed_pool_capacity(operator: Api, pool: ResourcePool, team: Team, other_team: Team) -> None:
    answer = put(operator, f"/pools/{pool.pk}/quotas/{other_team.pk}", {"nominal": 1})
    assert (answer.status_code, answer.json()["code"]) == (409, "quota_exceeds_pool")
    assert answer.json()["errors"][0]["pointer"] == "/nominal"
    assert TeamQuota.objects.get(team=other_team).nominal == 0 and not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("body", "status"), [({}, 422), ({"nominal": -1}, 422), ({"nominal": 1, "weight": 0}, 422), ({"nominal": "x"}, 422)]
)
def test_invalid_quota_is_refused(operator: Api, pool: ResourcePool, team: Team, body: Any, status: int) -> None:
    assert put(operator, f"/pools/{pool.pk}/quotas/{team.pk}", body).status_code == status


@pytest.mark.parametrize("path", ["/pools/{}/quotas/team_nobody", "/pools/pool_none/quotas/{}", "/pools/%00/quotas/{}"])
def test_missing_pool_or_team_is_404(operator: Api, pool: ResourcePool, team: Team, path: str) -> None:
    whole = path.format(pool.pk if "nobody" in path else team.pk)
    assert put(operator, whole, {"nominal": 1}).status_code == 404


def test_lowered_quota_keeps_running_jobs(
    operator: Api, pool: ResourcePool, team: Team, attempt: JobAttempt, make_job: Any, now: datetime
) -> None:
    connection.check_constraints()  # as at the commit of a job started under the old quota
    assert put(operator, f"/pools/{pool.pk}/quotas/{team.pk}", {"nominal": 2}).status_code == 200
    waiting = make_job(devices=2)
    schedule_pool(pool.pk, now=now)
    attempt.job.refresh_from_db()
    waiting.refresh_from_db()
    assert (attempt.job.state, waiting.state, waiting.reason) == ("starting", "queued", "team_ceiling")


def test_largest_job_that_may_ever_start(pool: ResourcePool, team: Team, other_team: Team) -> None:
    assert [most_of(other_team, pool, preemptible=may) for may in (False, True)] == [0, 8]
    TeamQuota.objects.filter(team=team).update(lend_limit=3)
    assert most_of(other_team, pool, preemptible=True) == 3
    TeamQuota.objects.filter(team=other_team).update(borrow_limit=2)
    assert most_of(other_team, pool, preemptible=True) == 2


def test_borrowing_job_is_accepted_only_if_preemptible(
    api_of: Callable[[User], Api], charlie: User, other_project: Any, pool: ResourcePool
) -> None:
    theirs = api_of(charlie)
    for preemptible, status in ((False, 422), (True, 202)):
        spec = {"name": "Sums", "placement": {"preemptible": preemptible}}
        assert theirs.post("/jobs", {"project": other_project.pk, "spec": spec}).status_code == status
    assert Job.objects.get().preemptible
