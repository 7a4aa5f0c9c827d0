"""Budgets: derived from reservations, kept by never starting a job that could exceed them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backend.accounts.models import Team, User
from backend.audit.models import AuditEntry
from backend.jobs.lifecycle import change_state
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.budgets import budget_states, month_of
from backend.pools.models import Budget, ResourcePool
from tests.backend.conftest import Api, MakeKey
from tests.backend.jobs.queue.test_quota import operator, put

__all__ = ["operator"]  # the fixture
HOUR = timedelta(hours=1)


def state(team: Team, now: datetime) -> tuple[float, float, float | None]:
    one = budget_states([team.pk], now=now)[team.pk]
    return one.spent, one.committed, one.left


def finish(job: Job, *, now: datetime) -> None:
    job.refresh_from_db()
    for to in (JobState.STOPPING, JobState.SUCCEEDED):
        change_state(job, to, actor="engine:1", now=now)


def test_what_is_spent_and_promised_follows_the_reservations(
    make_job: Any, pool: ResourcePool, team: Team, now: datetime
) -> None:
    Budget.objects.create(team=team, gpu_seconds=100_000)
    job = make_job(devices=4, max_runtime_s=7_200)
    assert state(team, now) == (0, 0, 100_000)
    schedule_pool(pool.pk, now=now)
    assert state(team, now) == (0, 4 * 7_200, 100_000 - 4 * 7_200)
    assert state(team, now + HOUR) == (4 * 3_600, 4 * 3_600, 100_000 - 4 * 7_200)
    finish(job, now=now + HOUR)
    assert state(team, now + 9 * HOUR) == (4 * 3_600, 0, 100_000 - 4 * 3_600)


def test_only_the_month_s_part_counts(make_job: Any, pool: ResourcePool, team: Team) -> None:
    before = datetime(2026, 1, 31, 23, 0, tzinfo=UTC)
    make_job(devices=2, at=before)
    schedule_pool(pool.pk, now=before)
    assert month_of(before + 2 * HOUR) == datetime(2026, 2, 1, tzinfo=UTC)
    assert state(team, before + 3 * HOUR)[0] == 2 * 2 * 3_600


def test_a_job_waits_while_its_longest_run_could_not_be_paid(
    make_job: Any, pool: ResourcePool, team: Team, now: datetime
) -> None:
    Budget.objects.create(team=team, gpu_seconds=3 * 3_600)
    first, second = make_job(devices=2), make_job(devices=2, at=now + timedelta(seconds=1))
    assert schedule_pool(pool.pk, now=now) == 1
    second.refresh_from_db()
    assert (second.state, second.reason) == ("queued", "budget") and "budget" in second.message
    finish(first, now=now + timedelta(minutes=30))
    assert schedule_pool(pool.pk, now=now + timedelta(minutes=30)) == 1, "unused time is available again"
    assert Budget.objects.get().gpu_seconds >= state(team, now + timedelta(minutes=30))[0]


def test_nothing_that_runs_is_stopped_for_money(make_job: Any, pool: ResourcePool, team: Team, now: datetime) -> None:
    job = make_job(devices=2)
    schedule_pool(pool.pk, now=now)
    Budget.objects.create(team=team, gpu_seconds=0)
    schedule_pool(pool.pk, now=now)
    job.refresh_from_db()
    assert job.state == "starting" and state(team, now)[2] == -2 * 3_600


def test_elastic_replicas_are_paid_for_too(make_job: Any, pool: ResourcePool, team: Team, now: datetime) -> None:
    Budget.objects.create(team=team, gpu_seconds=4 * 3_600)
    job = make_job(devices=8, placement={"min_replicas": 1})
    schedule_pool(pool.pk, now=now)
    assert job.reservations.filter(role="elastic").count() == 2
    assert state(team, now) == (0, 4 * 3_600, 0)


def test_a_team_reads_its_budget_and_an_operator_sets_it(
    operator: Api, make_key: MakeKey, bob: User, team: Team, other_team: Team, pool: ResourcePool
) -> None:
    mine = Api(make_key(bob, scopes=("usage:read",)))
    nothing = {"team": team.pk, "period": "month", "gpu_seconds": None, "spent": 0, "committed": 0, "left": None}
    assert mine.get("/budgets").json() == nothing
    assert put(mine, f"/budgets/{team.pk}", {"gpu_seconds": 5}).status_code == 403
    answer = put(operator, f"/budgets/{team.pk}", {"gpu_seconds": 5})
    assert (answer.status_code, answer.json()["gpu_seconds"], answer.json()["left"]) == (200, 5, 5)
    assert mine.get("/budgets").json() == answer.json()
    stale = put(operator, f"/budgets/{team.pk}", {"gpu_seconds": 6}, **{"If-Match": '"0"'})
    assert stale.status_code == 412
    assert put(operator, f"/budgets/{team.pk}", {"gpu_seconds": 6}, **{"If-Match": answer["ETag"]}).status_code == 200
    assert put(operator, f"/budgets/{team.pk}", {"gpu_seconds": None}).json() == nothing
    changes = AuditEntry.objects.filter(team=team, action="budget.changed").order_by("seq")
    assert [entry.data["after"] for entry in changes] == [5, 6, None]


@pytest.mark.parametrize("body", [{}, {"gpu_seconds": -1}, {"gpu_seconds": 2**60}, {"gpu_seconds": 1.5}])
def test_a_budget_that_makes_no_sense_is_refused(operator: Api, team: Team, body: Any) -> None:
    assert put(operator, f"/budgets/{team.pk}", body).status_code == 422


def test_two_pools_are_serialized_on_a_teams_budget(
    make_job: Callable[..., Job], pool: ResourcePool, team: Team, now: datetime, django_assert_num_queries: Any
) -> None:
    """The second round sees what the first has committed, because it waits for the budget's row."""
    Budget.objects.create(team=team, gpu_seconds=3 * 3_600)
    other = ResourcePool.objects.create(name="other", flavor="cpu", capacity=8)
    other.quotas.create(team=team, nominal=8)
    first, second = make_job(devices=2), make_job(devices=2)
    Job.objects.filter(pk=second.pk).update(pool=other)
    assert schedule_pool(pool.pk, now=now) + schedule_pool(other.pk, now=now) == 1
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.reason) == ("starting", "budget")
