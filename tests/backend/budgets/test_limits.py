"""Budgets of projects and members: no job starts that could exceed one, and each level warns once."""

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.core import mail
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.accounts.acting import Acting
from backend.accounts.models import Project, Role, Team, User
from backend.audit.models import AuditEntry
from backend.budgets.limits import limits_of, set_limit
from backend.budgets.models import BudgetWarning, SpendingLimit
from backend.budgets.warnings import warn
from backend.errors import Denied
from backend.jobs.models import Job, JobState
from backend.jobs.queue.explain import explain_wait
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.decision.decide import decide
from backend.pools.decision.views import PoolView, QueuedJobView, SpendingLimitView, TeamView
from backend.pools.models import Budget, Reservation, ResourcePool, TeamQuota
from backend.usage.pricing.prices import PriceTerms, set_price
from backend.usage.report import GroupBy, usage_of
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
from tests.backend.conftest import NOW, MakeJob
from tests.racing import race

pytestmark = pytest.mark.django_db
HOUR = 3_600


def limited(team: Team, now: datetime, amount: str, *, unit: str = "device_seconds", **whose: str) -> SpendingLimit:
    owner = User.objects.filter(memberships__team=team, memberships__role=Role.OWNER).first()
    assert owner is not None
    acting = Acting(user=owner, team=team, role=Role.OWNER)
    limit = set_limit(acting, unit=unit, amount=Decimal(amount), if_match=None, now=now, **whose)
    assert limit is not None
    return limit


def priced(pool: ResourcePool, now: datetime, text: str) -> None:
    terms = PriceTerms(per_device_second=Decimal(text), valid_from=None, currency="EUR")
    set_price(pool, terms, actor="user:1", now=now)


def test_project_budget_holds_new_jobs_and_stops_none(
    make_job: MakeJob, pool: ResourcePool, team: Team, project: Project, now: datetime
) -> None:
    limited(team, now, str(3 * HOUR), project=project.pk)
    first, second = make_job(devices=2), make_job(devices=2, at=now + timedelta(seconds=1))
    assert schedule_pool(pool.pk, now=now) == 1
    second.refresh_from_db()
    assert (second.state, second.reason) == ("queued", "budget") and f"project {project.name}" in second.message
    reason = explain_wait(second, now=now)
    assert reason is not None and f"the budget of project {project.name}" in reason.message
    limited(team, now, "0", project=project.pk)
    schedule_pool(pool.pk, now=now)
    first.refresh_from_db()
    assert first.state == "starting", "running jobs are not stopped"
    [seen] = limits_of(team, now=now + timedelta(minutes=30))
    assert seen.spent == HOUR and seen.committed == HOUR


def test_a_person_s_budget_binds_that_person_alone(
    make_job: MakeJob, pool: ResourcePool, team: Team, bob: User, now: datetime
) -> None:
    limited(team, now, "1", person=bob.public_id)
    his, hers = make_job(user=bob), make_job()
    assert schedule_pool(pool.pk, now=now) == 1
    for job in (his, hers):
        job.refresh_from_db()
    assert (his.reason, hers.state) == ("budget", "starting") and bob.email in his.message


def test_money_budget_uses_the_prices_that_are_billed(
    make_job: MakeJob, pool: ResourcePool, team: Team, project: Project, now: datetime
) -> None:
    priced(pool, now, "0.5")
    limited(team, now, "7200", unit="money", project=project.pk)
    job = make_job(devices=3, max_runtime_s=HOUR)
    assert schedule_pool(pool.pk, now=now) == 1
    priced(pool, now + timedelta(minutes=10), "2")
    later = now + timedelta(minutes=20)
    [seen] = limits_of(team, now=later)
    [billed] = usage_of(team, GroupBy.PROJECT, first=now.date(), last=now.date(), now=later)
    assert seen.spent * 10**18 == billed.kinds.cost_billed == 3 * 600 * (Decimal("0.5") + 2) * 10**18
    assert seen.committed == 3 * 2_400 * 2
    waiting = make_job(devices=2, max_runtime_s=HOUR)
    schedule_pool(pool.pk, now=later)
    waiting.refresh_from_db()
    assert waiting.reason == "budget" and job.pool_id == pool.pk


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 100), st.sets(st.sampled_from("abc"))), max_size=8),
    st.dictionaries(st.sampled_from("abc"), st.integers(-50, 400), min_size=3, max_size=3),
)
def test_starts_of_one_round_never_exceed_a_limit(jobs: list[tuple[int, int, set[str]]], left: dict[str, int]) -> None:
    queued = [
        QueuedJobView(
            id=f"job{n}", team="t", devices=devices, queued_at=NOW, max_runtime_s=longest, draws_on=tuple(sorted(draws))
        )
        for n, (devices, longest, draws) in enumerate(jobs)
    ]
    limits = {name: SpendingLimitView(left=amount) for name, amount in left.items()}
    view = PoolView(capacity=99, teams={"t": TeamView(nominal=99)}, queued=queued, now=NOW, limits=limits)
    verdict = decide(view)
    for name, amount in left.items():
        drawn = [job for job in queued if job.id in verdict.admitted and name in job.draws_on]
        assert not drawn or sum(job.devices * job.max_runtime_s for job in drawn) <= amount
    assert set(verdict.reasons.values()) <= {"budget"}, "and no other job waits"


def test_only_admins_and_owners_set_limits(team: Team, bob: User, project: Project, now: datetime) -> None:
    acting = Acting(user=bob, team=team, role=Role.MEMBER)
    with pytest.raises(Denied):
        set_limit(acting, project=project.pk, unit="money", amount=Decimal(1), if_match=None, now=now)


# ── warnings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def spend(job: Job, pool: ResourcePool, now: datetime, seconds: float) -> None:
    Reservation.objects.create(
        job=job, attempt=1, pool=pool, team_id=job.team_id, role="trainer", devices=1, created_at=now,
        released_at=now + timedelta(seconds=seconds),
    )  # fmt: skip


@override_settings(EMAIL_BACKEND="django.core.mail.backends.locmem.EmailBackend")
def test_each_level_warns_once_a_month_on_every_channel(
    job: Job, pool: ResourcePool, team: Team, alice: User, project: Project, now: datetime,
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr("backend.accounts.letters.has_mail", lambda: True)
    WebhookEndpoint.objects.create(
        team=team, url="https://example.org/hook", events=["budget.warned"], secret="sealed", created_at=now
    )
    WebhookEndpoint.objects.create(
        team=team, url="https://example.org/jobs", events=["job.*"], secret="sealed", created_at=now
    )
    limited(team, now, "100", project=project.pk)

    def looked(at_s: float) -> list[int]:
        with django_capture_on_commit_callbacks(execute=True):
            warn(now=now + timedelta(seconds=at_s))
        entries = AuditEntry.objects.filter(team=team, action="budget.warned").order_by("seq")
        return [entry.data["percent"] for entry in entries]

    spend(job, pool, now, 49.9)
    assert looked(60) == []
    spend(job, pool, now, 0.1)
    assert looked(61) == looked(62) == [50]
    spend(job, pool, now, 60)
    assert looked(70) == looked(80) == [50, 100], "of several levels at once the highest is sent"
    assert WebhookDelivery.objects.count() == 2 and {row.type for row in WebhookDelivery.objects.all()} == {EVENT}
    assert [letter.to for letter in mail.outbox] == [[alice.email], [alice.email]]
    assert BudgetWarning.objects.count() == 3
    spend(job, pool, now + timedelta(days=31), 60)
    assert looked(32 * 86_400) == [50, 100, 50], "a new month"


EVENT = "budget.warned"


def test_a_team_s_own_budget_is_warned_of_as_well(job: Job, pool: ResourcePool, team: Team, now: datetime) -> None:
    Budget.objects.create(team=team, gpu_seconds=100)
    spend(job, pool, now, 85)
    assert [warn(now=now + timedelta(seconds=at)) for at in (100, 101)] == [1, 0]
    assert BudgetWarning.objects.get(percent=80).limit is None and BudgetWarning.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_of_two_that_look_at_once_one_warns(
    job: Job, pool: ResourcePool, team: Team, project: Project, alice: User, now: datetime,
    in_own_connection: Callable[..., Any],
) -> None:  # fmt: skip
    limited(team, now, "100", project=project.pk)
    spend(job, pool, now, 100)
    look = in_own_connection(lambda: warn(now=now + timedelta(seconds=200)))
    assert sorted(race(look, look)) == [0, 1]
    assert AuditEntry.objects.filter(action=EVENT).count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_pools_at_once_do_not_spend_the_same_budget_twice(
    make_job: MakeJob, pool: ResourcePool, team: Team, project: Project, alice: User, now: datetime,
    in_own_connection: Callable[..., Any],
) -> None:  # fmt: skip
    other = ResourcePool.objects.create(name="second", flavor="cpu", capacity=8)
    TeamQuota.objects.create(pool=other, team=team, nominal=8)
    jobs = [make_job(devices=2, max_runtime_s=HOUR), make_job(devices=2, max_runtime_s=HOUR)]
    Job.objects.filter(pk=jobs[1].pk).update(pool=other)
    limited(team, now, str(3 * HOUR), project=project.pk)
    rounds = (
        partial(in_own_connection(lambda pool_id: schedule_pool(pool_id, now=now)), at.pk) for at in (pool, other)
    )
    assert sorted(race(*rounds)) == [0, 1]
    assert sorted(Job.objects.values_list("state", flat=True)) == sorted([JobState.QUEUED, JobState.STARTING])
