"""Ceilings of a key: concurrent devices and total GPU-hours, exact under a race."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, transaction

from backend.accounts.models import ApiKey, Project, Team, User
from backend.accounts.people.ceilings import CeilingReached
from backend.accounts.services import create_api_key
from backend.errors import Denied
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.models import Job
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.key_use import use_of_key
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import Reservation, ResourcePool
from tests.backend.conftest import NOW, Api, MakeSpec
from tests.racing import race

pytestmark = pytest.mark.django_db
HOUR_S = 3_600


@pytest.fixture
def limited(team: Team, alice: User, project: Project, pool: ResourcePool, make_spec: MakeSpec) -> Callable[..., Any]:
    """`limited(max_devices=4)`: the key, and a function that submits with it and returns the response."""

    def make(**ceilings: Any) -> tuple[ApiKey, Callable[..., Any]]:
        key, text = create_api_key(team=team, created_by=alice, name="limited", **ceilings)

        def submit(devices: int = 3, **changes: Any) -> Any:
            spec = make_spec(devices=devices, **changes).model_dump(mode="json")
            return Api(text).request("POST", "/jobs", {"project": project.pk, "spec": spec})

        return key, submit

    return make


def test_the_ceiling_of_devices_counts_what_waits_and_what_runs(limited: Any, pool: ResourcePool) -> None:
    _, submit = limited(max_devices=6)
    first = submit(3)
    assert (first.status_code, submit(3).status_code) == (202, 202)
    refused = submit(2)
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["ceiling"]) == (409, "key_ceiling", "max_devices")
    assert (problem["limit"], problem["in_use"]) == (6, 6)
    cancel_job(first.json()["id"], actor="user:1", now=NOW)
    assert submit(3).status_code == 202
    assert Job.objects.count() == 3, "a refused job is not stored"


def test_ceiling_applies_on_every_route(
    limited: Any, team: Team, project: Project, pool: ResourcePool, alice: User, make_spec: MakeSpec
) -> None:
    key, _ = limited(max_devices=4)

    def submit(devices: int, project: Project = project) -> Job:
        by = Submitter(user=alice, key=key)
        return submit_job(by=by, team=team, project=project, pool=pool, spec=make_spec(devices=devices), now=NOW)

    assert submit(3).events.get().actor == f"key:{key.pk}"
    with pytest.raises(CeilingReached), transaction.atomic():
        submit(2)
    assert Job.objects.count() == 1
    key.project = project
    with pytest.raises(Denied):
        submit(2, Project.objects.create(team=team, name="Another"))


def test_other_keys_and_people_do_not_count(limited: Any, make_job: Any, api: Api) -> None:
    make_job(devices=8)
    _, submit = limited(max_devices=3)
    _, other = limited(max_devices=8)
    assert other(8).status_code == 202
    assert submit(3).status_code == 202


def test_gpu_hours_are_promised_at_submission(limited: Any) -> None:
    _, submit = limited(max_gpu_hours=Decimal("7.5"))
    assert submit(3, max_runtime_s=2 * HOUR_S).status_code == 202  # 6 GPU-hours at most
    refused = submit(3, max_runtime_s=HOUR_S)
    assert (refused.status_code, refused.json()["ceiling"]) == (409, "max_gpu_hours")
    assert submit(3, max_runtime_s=HOUR_S // 2).status_code == 202  # 1.5 more is just what is left


def test_an_ended_job_counts_what_it_really_held(limited: Any, pool: ResourcePool) -> None:
    key, submit = limited(max_gpu_hours=Decimal(3))
    job = Job.objects.get(pk=submit(3, max_runtime_s=HOUR_S).json()["id"])
    assert use_of_key(key, now=NOW).gpu_seconds == 3 * HOUR_S
    Reservation.objects.create(
        job=job, attempt=1, pool=pool, team=job.team, role="trainer", devices=2,
        created_at=NOW, released_at=NOW + timedelta(minutes=10),
    )  # fmt: skip
    cancel_job(job.pk, actor="user:1", now=NOW)
    assert use_of_key(key, now=NOW).gpu_seconds == 2 * 600
    assert use_of_key(key, now=NOW).devices == 0


def test_a_running_job_that_overstays_counts_in_full(limited: Any, pool: ResourcePool) -> None:
    key, submit = limited(max_gpu_hours=Decimal(100))
    submit(3, max_runtime_s=60)
    schedule_pool(pool.pk, now=NOW)
    begun = Reservation.objects.order_by("created_at").values_list("created_at", flat=True)[0]
    assert use_of_key(key, now=begun + timedelta(seconds=30)).gpu_seconds == 3 * 60
    assert use_of_key(key, now=begun + timedelta(seconds=90)).gpu_seconds == 3 * 90


@pytest.mark.django_db(transaction=True)
def test_ceiling_holds_for_concurrent_submissions(limited: Any, in_own_connection: Callable[..., Any]) -> None:
    _, submit = limited(max_devices=6)
    answers = race(*[in_own_connection(lambda: submit(2).status_code)] * 8)
    assert sorted(answers) == [202] * 3 + [409] * 5


def test_the_measure_is_served_by_an_index(limited: Any) -> None:
    """Not by a scan of all events."""
    with connection.cursor() as db:
        db.execute("SET LOCAL enable_seqscan = off")
        db.execute("EXPLAIN SELECT job_id FROM jobs_jobevent WHERE type = 'submitted' AND actor = 'key:x'")
        plan = "\n".join(row[0] for row in db.fetchall())
    assert "job_submitted_by" in plan
