"""The queue as a team sees it, and the counterfactuals of a waiting job."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backend.accounts.models import User
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import change_state
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.models import ResourcePool, TeamQuota
from tests.backend.conftest import Api
from tests.backend.jobs.queue.test_preemption import Theirs, theirs

__all__ = ["theirs"]  # the fixture
MINUTE = timedelta(minutes=1)


@pytest.fixture
def now() -> datetime:
    """These routes read the database's clock, so their rows must be recent."""
    return datetime.now(UTC) - timedelta(seconds=5)


@pytest.fixture
def busy(make_job: Any, theirs: Theirs, pool: ResourcePool, now: datetime) -> list[Job]:
    """Our job holds three devices, theirs four; ours waits for five, theirs for two."""
    jobs = [make_job(devices=3, at=now), theirs(4, now=now)]
    assert schedule_pool(pool.pk, now=now) == 2
    jobs += [make_job(devices=5, at=now, name="Big"), theirs(2, now=now, name="Secret plans")]
    schedule_pool(pool.pk, now=now)
    return jobs


def test_queue_shows_holders_and_waiting_jobs(api: Api, busy: list[Job], pool: ResourcePool) -> None:
    seen = api.get(f"/pools/{pool.pk}/queue").json()
    assert (seen["capacity"], seen["free"], seen["used"], seen["used_by_others"]) == (8, 1, 3, 4)
    assert {(one["team"], one["job"], one["devices"], one["state"]) for one in seen["holders"]} == {
        ("Ants", busy[0].pk, 3, "starting"),
        ("another team", None, 4, "starting"),
    }
    assert [(one["position"], one["team"], one["name"], one["devices"], one["reason"]) for one in seen["waiting"]] == [
        (1, "Ants", "Big", 5, "pool_full"),
        (2, "another team", None, 2, None),
    ]
    assert (seen["num_waiting"], seen["has_more"]) == (2, False)
    assert seen["evaluated_at"] and seen["history"] > 0 and seen["share"] == 0


def test_other_teams_jobs_are_hidden(
    api: Api, api_of: Callable[[User], Api], charlie: User, busy: list[Job], pool: ResourcePool
) -> None:
    ours = api.get(f"/pools/{pool.pk}/queue").content.decode()
    for job in (busy[1], busy[3]):
        assert all(word not in ours for word in (job.pk, job.team_id, job.team.name, "Secret", charlie.email))
    seen = api_of(charlie).get(f"/pools/{pool.pk}/queue").json()
    assert [one["name"] for one in seen["waiting"]] == [None, "Secret plans"]
    assert seen["share"] == 0.5, "four of the eight lent devices"


def test_long_queue_is_cut_with_has_more(api: Api, busy: list[Job], pool: ResourcePool) -> None:
    seen = api.get(f"/pools/{pool.pk}/queue", limit=1).json()
    assert (len(seen["waiting"]), seen["num_waiting"], seen["has_more"]) == (1, 2, True)
    seen = api.get(f"/pools/{pool.pk}/queue", mine=True).json()
    assert [one["job"] for one in seen["waiting"]] == [busy[2].pk] and not seen["has_more"]
    assert len(seen["holders"]) == 2


def test_pool_without_quota_is_404(api: Api, pool: ResourcePool) -> None:
    other = ResourcePool.objects.create(name="other", flavor="cpu", capacity=8)
    for pool_id in (other.pk, "pool_none", "%00"):
        assert api.get(f"/pools/{pool_id}/queue").status_code == 404


def test_waiting_job_has_reason_position_and_estimate(api: Api, busy: list[Job]) -> None:
    answer = api.get(f"/jobs/{busy[2].pk}/explain").json()
    assert (answer["state"], answer["reason"], answer["waiting"]["reason"]) == ("queued", "pool_full", "pool_full")
    assert answer["message"] == answer["waiting"]["message"] and "5 devices" in answer["message"]
    assert answer["waiting"]["position"] == 1 and answer["evaluated_at"]
    assert answer["failure"] is None


def test_estimate_uses_earliest_preemption(api: Api, busy: list[Job], now: datetime) -> None:
    """Their job is borrowed: it is preempted ten minutes after its start, and has drained a minute later."""
    estimate = api.get(f"/jobs/{busy[2].pk}/explain").json()["waiting"]
    starts = datetime.fromisoformat(estimate["starts_at"])
    assert timedelta(minutes=10) <= starts - now <= timedelta(minutes=12)


def test_estimate_uses_longest_run_of_firm_jobs(api: Api, make_job: Any, pool: ResourcePool, now: datetime) -> None:
    make_job(devices=8, at=now, max_runtime_s=1_800)
    schedule_pool(pool.pk, now=now)
    waiting, behind = make_job(devices=6, at=now), make_job(devices=4, at=now + MINUTE / 60)
    schedule_pool(pool.pk, now=now)
    for job, minutes in ((waiting, 30), (behind, 90)):
        estimate = api.get(f"/jobs/{job.pk}/explain").json()["waiting"]
        starts = datetime.fromisoformat(estimate["starts_at"])
        assert abs(starts - now - timedelta(minutes=minutes)) < timedelta(seconds=1)
        assert not estimate["starts_as_preemptible"]


def test_smaller_size_that_would_start_now(api: Api, make_job: Any, pool: ResourcePool, now: datetime) -> None:
    first = make_job(devices=5, at=now)
    schedule_pool(pool.pk, now=now)
    waiting = make_job(devices=6, at=now)
    schedule_pool(pool.pk, now=now)
    answer = api.get(f"/jobs/{waiting.pk}/explain").json()["waiting"]
    assert answer["starts_with_fewer"] == {"devices": 3, "fewer": 3, "replicas": 2}
    first.refresh_from_db()
    change_state(first, JobState.STOPPING, actor="engine:1", now=now)
    change_state(first, JobState.SUCCEEDED, actor="engine:1", now=now)
    answer = api.get(f"/jobs/{waiting.pk}/explain").json()
    assert answer["waiting"] is None, "it would start right now"


def test_advice_holds_for_a_new_job_at_the_end_of_queue(
    api: Api, make_job: Any, pool: ResourcePool, now: datetime
) -> None:
    """Devices are held for the job that waits longest; if it is cancelled, they are held for the next one, and not for
    a smaller job that comes now."""
    make_job(devices=5, at=now - 30 * MINUTE)
    schedule_pool(pool.pk, now=now - 30 * MINUTE)
    first, second = make_job(devices=6, at=now - 20 * MINUTE), make_job(devices=5, at=now - 19 * MINUTE)
    schedule_pool(pool.pk, now=now)
    assert api.get(f"/jobs/{first.pk}/explain").json()["waiting"]["starts_with_fewer"] is None
    cancel_job(second.pk, actor="test", now=now)
    assert api.get(f"/jobs/{first.pk}/explain").json()["waiting"]["starts_with_fewer"]["devices"] == 3
    cancel_job(first.pk, actor="test", now=now)
    smaller = make_job(devices=3, at=now)
    schedule_pool(pool.pk, now=now)
    smaller.refresh_from_db()
    assert smaller.state == JobState.STARTING


def test_preemptible_job_could_borrow(api: Api, make_job: Any, pool: ResourcePool, now: datetime) -> None:
    TeamQuota.objects.filter(nominal=8).update(nominal=4)
    make_job(devices=3, at=now)
    schedule_pool(pool.pk, now=now)
    waiting = make_job(devices=4, at=now)
    schedule_pool(pool.pk, now=now)
    answer = api.get(f"/jobs/{waiting.pk}/explain").json()["waiting"]
    assert (answer["reason"], answer["starts_as_preemptible"]) == ("team_ceiling", True)


def test_closed_pool_has_no_estimate(api: Api, job: Job, pool: ResourcePool) -> None:
    ResourcePool.objects.update(is_open=False)
    waiting = api.get(f"/jobs/{job.pk}/explain").json()["waiting"]
    assert (waiting["reason"], waiting["starts_at"], waiting["starts_with_fewer"]) == ("pool_closed", None, None)


def test_running_job_shows_cause_of_its_state(api: Api, busy: list[Job]) -> None:
    answer = api.get(f"/jobs/{busy[0].pk}/explain").json()
    assert (answer["state"], answer["waiting"], answer["failure"]) == ("starting", None, None) and answer["message"]


def test_failed_job_shows_evidence(api: Api, job: Job, now: datetime) -> None:
    change_state(job, JobState.FAILED, actor="scheduler", now=now, message="No such model.", failure_class="config")
    answer = api.get(f"/jobs/{job.pk}/explain").json()
    assert answer["failure"]["failure_class"] == "config" and answer["failure"]["advice"]
