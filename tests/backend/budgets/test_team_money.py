"""A team's budget in money: it limits all of the team's jobs at current prices, and only operators set it."""

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from backend.accounts.models import Project, Team, User
from backend.audit.models import AuditEntry
from backend.budgets.limits import set_team_money, team_money
from backend.budgets.models import BudgetWarning, SpendingLimit
from backend.budgets.warnings import warn
from backend.jobs.models import Job
from backend.jobs.queue.explain import explain_wait
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import Budget, ResourcePool, TeamQuota
from backend.usage.report import GroupBy, usage_of
from tests.backend.budgets.test_limits import limited, priced, spend
from tests.backend.conftest import Api, MakeJob, MakeSpec

pytestmark = pytest.mark.django_db
HOUR = 3_600


def funded(team: Team, now: datetime, amount: str | None) -> SpendingLimit | None:
    money = None if amount is None else Decimal(amount)
    return set_team_money(team, money, if_match=None, actor="user:1", now=now)


@pytest.fixture
def operator(alice: User) -> Client:
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    browser = Client()
    browser.force_login(alice)
    return browser


def test_team_money_limits_its_team_only(
    make_job: MakeJob, make_spec: MakeSpec, pool: ResourcePool, team: Team, other_team: Team, charlie: User, bob: User,
    now: datetime,
) -> None:  # fmt: skip
    priced(pool, now, "1")
    TeamQuota.objects.filter(pool=pool, team=team).update(nominal=4)
    TeamQuota.objects.filter(pool=pool, team=other_team).update(nominal=2)
    theirs = submit_job(
        team=other_team,
        project=Project.objects.create(team=other_team, name="Hive"),
        by=Submitter(user=charlie, key=None),
        spec=make_spec(devices=2),
        pool=pool,
        now=now,
    )
    funded(team, now, str(3 * HOUR))
    first = make_job(devices=2, max_runtime_s=HOUR, at=now + timedelta(seconds=1))
    second = make_job(user=bob, devices=2, max_runtime_s=HOUR, at=now + timedelta(seconds=2))
    schedule_pool(pool.pk, now=now)
    for job in (first, second, theirs):
        job.refresh_from_db()
    assert (first.state, second.reason, theirs.state) == ("starting", "budget", "starting")
    reason = explain_wait(second, now=now)
    assert reason is not None and f"the budget of team {team.name}" in reason.message
    funded(team, now, "0")
    schedule_pool(pool.pk, now=now)
    first.refresh_from_db()
    assert first.state == "starting", "running jobs are not stopped"


def test_it_counts_what_is_billed_by_the_prices_of_the_time(
    make_job: MakeJob, pool: ResourcePool, team: Team, now: datetime
) -> None:
    priced(pool, now, "0.5")
    funded(team, now, "10800")
    make_job(devices=3, max_runtime_s=HOUR)
    assert schedule_pool(pool.pk, now=now) == 1
    priced(pool, now + timedelta(minutes=10), "2")
    later = now + timedelta(minutes=20)
    seen = team_money([team.pk], now=later)[team.pk]
    [billed] = usage_of(team, GroupBy.PROJECT, first=now.date(), last=now.date(), now=later)
    assert seen.spent * 10**18 == billed.kinds.cost_billed == 3 * 600 * (Decimal("0.5") + 2) * 10**18
    assert seen.left == 10_800 - seen.spent - 3 * 2_400 * 2


def test_work_of_a_pool_without_a_price_costs_nothing_of_it(
    make_job: MakeJob, pool: ResourcePool, team: Team, now: datetime
) -> None:
    SpendingLimit.objects.create(team=team, unit="money", amount=0)
    make_job()
    assert schedule_pool(pool.pk, now=now) == 1


def test_a_project_draws_on_its_own_budget_and_on_the_team_s(
    make_job: MakeJob, pool: ResourcePool, team: Team, project: Project, alice: User, now: datetime
) -> None:
    priced(pool, now, "1")
    limited(team, now, str(9 * HOUR), project=project.pk)
    funded(team, now, str(HOUR))
    job = make_job(devices=2, max_runtime_s=HOUR)
    schedule_pool(pool.pk, now=now)
    job.refresh_from_db()
    assert job.reason == "budget" and f"team {team.name}" in job.message


def test_the_database_holds_one_a_team_and_that_of_money(team: Team) -> None:
    with pytest.raises(IntegrityError, match="limit_of_a_team_is_of_money"), transaction.atomic():
        SpendingLimit.objects.create(team=team, unit="device_seconds", amount=1)
    SpendingLimit.objects.create(team=team, unit="money", amount=1)
    with pytest.raises(IntegrityError, match="one_limit_per_team"), transaction.atomic():
        SpendingLimit.objects.create(team=team, unit="money", amount=2)


def test_each_level_warns_once_apart_from_gpu_hours(job: Job, pool: ResourcePool, team: Team, now: datetime) -> None:
    priced(pool, now, "2")
    funded(team, now, "200")
    Budget.objects.create(team=team, gpu_seconds=100)
    spend(job, pool, now, 85)
    assert [warn(now=now + timedelta(seconds=at)) for at in (100, 101)] == [2, 0]
    spend(job, pool, now, 15)
    assert warn(now=now + timedelta(seconds=120)) == 2
    assert sorted(BudgetWarning.objects.filter(limit__isnull=False).values_list("percent", flat=True)) == [50, 80, 100]
    warnings = AuditEntry.objects.filter(team=team, action="budget.warned", data__unit="money").order_by("seq")
    assert [(entry.data["percent"], entry.data["spent"], entry.data["currency"]) for entry in warnings] == [
        (80, "170", "EUR"), (100, "200", "EUR"),
    ]  # fmt: skip


def test_an_operator_s_program_sets_it_and_the_team_reads_it(
    api: Api, pool: ResourcePool, team: Team, alice: User, now: datetime
) -> None:
    path = f"/budgets/{team.pk}/money"
    assert api.request("PUT", path, {"amount": "5"}).status_code == 403, "owners of the team may not"
    priced(pool, now, "1")
    funded(team, now, "2500.50")
    [shown] = api.get("/budgets/limits").json()["data"]
    assert shown | {"name": team.name, "amount": "2500.5", "unit": "money", "currency": "EUR"} == shown
    assert shown["project_id"] is shown["user_id"] is None
    entry = AuditEntry.objects.get(team=team, action="limit.changed")
    assert (entry.target, entry.data) == (team.pk, {"before": None, "after": "2500.50 money"})


def test_operator_sets_team_money_and_team_page_shows_it(
    operator: Client, pool: ResourcePool, team: Team, now: datetime
) -> None:
    path = f"/operator/teams/{team.pk}/money"

    def told(**form: str) -> str:
        return operator.post(path, form, follow=True).text

    assert "This site has no prices" in told(amount="10", version='"0"')
    assert "EUR this month" not in operator.get("/operator/teams/").text
    priced(pool, now, "1")
    assert "2,500.50 EUR per month" in told(amount="2500.50", version='"0"')
    assert "This has changed" in told(amount="7", version='"0"')
    assert "is ambiguous" in told(amount="1,500", version='"1"')
    page = operator.get(f"/usage/?team={team.pk}").text
    assert f"team {team.name}" in page and "of 2,500.50 EUR spent" in page
    assert "Set by the operators" in page and f"the budget of team {team.name}" not in page
    assert "Budget of" in told(amount="", version='"1"')
    assert not SpendingLimit.objects.exists()
