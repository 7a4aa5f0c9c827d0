"""Maintenance: shown to all users, no job starts meanwhile, and it ends by itself."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import User
from backend.accounts.operators.acting import Operator
from backend.accounts.signing_in.chains import SITE
from backend.audit.models import AuditEntry
from backend.clock import database_now
from backend.errors import Invalid, NotFound
from backend.jobs.models import Job, JobState, OutboxMessage
from backend.jobs.queue.explain import outlook
from backend.jobs.queue.scheduling import schedule_pool
from backend.pages.announcements import LatestAnnouncements
from backend.pools.maintenance import MaintenanceTerms, announce, announced, end_maintenance, stops_starts
from backend.pools.models import Maintenance, ResourcePool
from tests.backend.conftest import Api, MakeJob, MakeKey, MakeSpec

HOUR = timedelta(hours=1)


@pytest.fixture
def operator(adam: User) -> Operator:
    adam.is_staff = True
    adam.save()
    return Operator.acting(adam)


def terms(now: datetime, **changes: Any) -> MaintenanceTerms:
    usual: dict[str, Any] = {"text": "New disks", "begins_at": now + 2 * HOUR, "ends_at": now + 4 * HOUR}
    return MaintenanceTerms(**(usual | changes))


def test_nothing_starts_from_stops_from_until_the_end(
    operator: Operator, job: Job, pool: ResourcePool, now: datetime, make_spec: MakeSpec
) -> None:
    announce(operator, terms(now, stops_from=now + HOUR), now=now)
    assert outlook(make_spec(), team_id=job.team_id, pool=pool, now=now) is None, "until then they start"
    assert schedule_pool(pool.pk, now=now + HOUR) == 0
    job.refresh_from_db()
    assert (job.state, job.reason) == (JobState.QUEUED, "maintenance") and "in maintenance" in job.message
    assert schedule_pool(pool.pk, now=now + 4 * HOUR) == 1, "it ends by itself"


def test_without_such_a_moment_jobs_start_throughout(operator: Operator, job: Job, now: datetime) -> None:
    announce(operator, terms(now), now=now)
    assert schedule_pool(job.pool_id, now=now + 3 * HOUR) == 1


def test_running_jobs_continue_without_growing_in_maintenance(
    operator: Operator, make_job: MakeJob, pool: ResourcePool, now: datetime
) -> None:
    elastic = make_job(devices=5, placement={"min_replicas": 1})
    announce(operator, terms(now, stops_from=now - HOUR), now=now)
    assert schedule_pool(pool.pk, now=now) == 0
    notice = announced(now).get()
    end_maintenance(operator, notice.pk, if_match=f'"{notice.version}"', now=now)
    assert schedule_pool(pool.pk, now=now) == 1
    elastic.refresh_from_db()
    assert elastic.state == JobState.STARTING


def test_announcing_and_ending_reach_scheduler_and_log(operator: Operator, pool: ResourcePool, now: datetime) -> None:
    notice = announce(operator, terms(now), now=now)
    OutboxMessage.objects.all().delete()
    end_maintenance(operator, notice.pk, if_match=None, now=now)
    assert OutboxMessage.objects.filter(topic="schedule", key=pool.pk).exists()
    assert not announced(now) and not stops_starts(now)
    actions = AuditEntry.objects.filter(team_id=SITE).order_by("seq").values_list("action", flat=True)
    assert list(actions) == ["maintenance.announced", "maintenance.ended"]
    with pytest.raises(NotFound):
        end_maintenance(operator, notice.pk, if_match=None, now=now)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"text": ""}, "/text"),
        ({"text": "two\nlines"}, "/text"),
        ({"ends_at": timedelta(hours=2)}, "/ends_at"),
        ({"begins_at": timedelta(hours=-3), "ends_at": timedelta(hours=-1)}, "/ends_at"),
        ({"ends_at": timedelta(days=40)}, "/ends_at"),
        ({"stops_from": timedelta(days=-31)}, "/ends_at"),
        ({"stops_from": timedelta(hours=4)}, "/stops_from"),
    ],
)
def test_what_makes_no_sense_is_refused(operator: Operator, now: datetime, changes: dict[str, Any], field: str) -> None:
    moved = {name: now + each if isinstance(each, timedelta) else each for name, each in changes.items()}
    with pytest.raises(Invalid) as refused:
        announce(operator, terms(now, **moved), now=now)
    assert [error.pointer for error in refused.value.errors] == [field]
    assert not Maintenance.objects.exists() and not AuditEntry.objects.exists()


def test_operator_key_manages_maintenance_and_every_key_reads(
    adam: User, alice: User, make_key: MakeKey, api: Api
) -> None:
    User.objects.filter(pk=adam.pk).update(is_staff=True)
    program = Api(make_key(adam, scopes=("site:operate", "jobs:read")))
    now = database_now()
    wish = {"text": "New disks", "begins_at": (now + HOUR).isoformat(), "ends_at": (now + 2 * HOUR).isoformat()}
    created = program.post("/maintenance", wish)
    assert created.status_code == 201, created.content
    [notice] = api.get("/maintenance").json()["data"]
    assert (notice["text"], notice["stops_from"], notice["is_under_way"]) == ("New disks", None, False)
    path, sent = f"/api/v1/maintenance/{notice['id']}", {"Authorization": f"Bearer {program.key}"}

    def put(text: str, seen: str) -> int:
        headers = sent | {"If-Match": seen}
        return program.client.put(
            path, data=wish | {"text": text}, content_type="application/json", headers=headers
        ).status_code

    assert put("Newer disks", created["ETag"]) == 200
    assert put("Other disks", created["ETag"]) == 412, "it was changed meanwhile"
    assert api.post("/maintenance", wish).status_code == 403
    assert program.client.delete(path, headers=sent).status_code == 204
    assert api.get("/maintenance").json()["data"] == []


def test_signed_in_users_only_see_it_on_every_page(
    operator: Operator, alice: User, pool: ResourcePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.pages.announcements.latest", LatestAnnouncements())
    now = database_now()
    announce(operator, terms(now, text="New <disks>", stops_from=now), now=now)
    client = Client()
    assert b"disks" not in client.get("/accounts/login/", secure=True).content
    client.force_login(alice, backend="allauth.account.auth_backends.AuthenticationBackend")
    for path in ("/jobs/", "/queue/", "/help/"):
        page = client.get(path, secure=True).content.decode()
        assert "New &lt;disks&gt;" in page and "No jobs start from" in page
