"""Credits by hand: what they change in the bill, who gives them, and that they can be taken back exactly."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.test import Client
from django.urls import reverse

from backend.accounts.models import Team, User
from backend.accounts.operators.acting import Operator
from backend.audit.models import AuditEntry
from backend.budgets.spending import spending_of
from backend.errors import Conflict, Invalid, NotFound
from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.lifecycle import locked_job
from backend.jobs.models import Job, JobAttempt
from backend.pools.models import ResourcePool
from backend.usage.credits.crediting import (
    CreditedAlready,
    NothingToCredit,
    StillRuns,
    active_credits,
    billed_failures,
    give_credit,
    take_back_credit,
)
from backend.usage.models import AttemptCredit, CreditedSlice, UsageSlice
from backend.usage.pricing.prices import PriceTerms, set_price
from backend.usage.report import GroupBy, usage_of
from backend.usage.selectors import gpu_seconds_of
from backend.usage.services import settle_reservations
from backend.usage.split import Kinds
from tests.backend.conftest import Api, MakeKey
from tests.backend.usage.test_usage import READY, Life, per_device
from tests.racing import race

pytestmark = pytest.mark.django_db

REASON = "A switch of ours dropped packets."


@pytest.fixture
def live(job: Job, pool: ResourcePool, now: datetime) -> Life:
    return Life(job, pool, now)


@pytest.fixture
def olga(db: None) -> User:
    return User.objects.create_user("olga@example.org", is_staff=True)


@pytest.fixture
def operator(olga: User) -> Operator:
    return Operator.acting(olga)


def priced(pool: ResourcePool, now: datetime) -> None:
    for text, after_s in (("0.000555555556", 0), ("0.003", 45)):
        begins = now + timedelta(seconds=after_s)
        terms = PriceTerms(per_device_second=Decimal(text), valid_from=begins, currency="EUR")
        set_price(pool, terms, actor="user:1", now=now)


def fails(live: Life, *, failure_class: str = "user_code", at: float = 60) -> None:
    """Ready at 10 s, a checkpoint at 40 s."""
    live.starts(0)
    live.says(10, READY)
    live.saves(40, 5)
    live.finishes(at, "failed", failure_class=failure_class, message="every rollout was lost and not replaced")


def fails_and_runs_again(live: Life) -> None:
    fails(live, failure_class="platform")
    begin_attempt(locked_job(live.job.pk), now=live.at(70))
    live.says(80, READY)


def give(live: Life, operator: Operator, *, at: float = 1_000, n: int = 1, reason: str = REASON) -> AttemptCredit:
    return give_credit(operator, live.job.pk, n, reason=reason, now=live.at(at))


def test_credit_of_settled_attempt_is_exact_and_undone_exactly(
    live: Life, operator: Operator, pool: ResourcePool, now: datetime
) -> None:
    priced(pool, now)
    fails(live)
    settle_reservations()
    before = live.kinds
    assert (before.credited, before.cost_credited) == (0, 0) and per_device(before).fault == 20
    credit = give(live, operator)
    fault = 3 * (5 * 555555556 + 15 * 3_000_000_000) * 10**6
    assert live.kinds == replace(before, credited=before.fault, cost_credited=fault), "at the price of each moment"
    take_back_credit(operator, credit.pk, now=live.at(2_000))
    assert live.kinds == before
    assert CreditedSlice.objects.filter(credit=credit).count() == 2, "the booking stays readable"


@pytest.mark.parametrize("credited_at", [75.0, 95.0, 1_000.0])
def test_moment_of_the_credit_changes_no_figure(live: Life, operator: Operator, credited_at: float) -> None:
    """While the next attempt starts, while it runs, and after all was settled."""
    fails_and_runs_again(live)
    if credited_at < 100:
        give(live, operator, at=credited_at)
    live.finishes(100)
    settle_reservations()
    if credited_at > 100:
        give(live, operator, at=credited_at)
    assert per_device(live.kinds) == Kinds(startup=10, useful=30 + 20, fault=40, credited=40)
    take_back_credit(operator, active_credits().get().pk, now=live.at(2_000))
    assert per_device(live.kinds) == Kinds(startup=10, useful=50, fault=40, credited=0)


def test_unsettled_credit_shows_at_once_and_can_be_taken_back(live: Life, operator: Operator) -> None:
    fails_and_runs_again(live)
    credit = give(live, operator, at=90)
    assert per_device(live.kinds).credited == 40
    take_back_credit(operator, credit.pk, now=live.at(95))
    assert live.kinds.credited == 0
    live.finishes(100)
    settle_reservations()
    assert live.kinds.credited == 0 and not CreditedSlice.objects.exists()


def test_two_attempts_of_one_job_are_credited_apart(live: Life, operator: Operator) -> None:
    fails(live, failure_class="platform")
    begin_attempt(locked_job(live.job.pk), now=live.at(70))
    live.says(80, READY)
    live.finishes(100, "failed", failure_class="user_code", message="a bug")
    settle_reservations()
    second = give(live, operator, n=2)
    assert per_device(live.kinds).credited == 30
    give(live, operator, n=1)
    assert per_device(live.kinds).credited == 60 == per_device(live.kinds).fault
    take_back_credit(operator, second.pk, now=live.at(2_000))
    assert per_device(live.kinds).credited == 30


def test_budgets_and_reports_follow_the_credit(
    live: Life, operator: Operator, team: Team, pool: ResourcePool, now: datetime
) -> None:
    priced(pool, now)
    fails(live)
    settle_reservations()
    credit = give(live, operator)
    later, month = live.at(3_000), datetime(2026, 1, 1, tzinfo=UTC)
    assert gpu_seconds_of(team.pk, month, now=later) == 3 * 40
    (spent,) = spending_of([team.pk], now=later).values()
    (group,) = usage_of(team, GroupBy.PROJECT, first=now.date(), last=now.date(), now=later)
    assert spent.seconds == 120 and int(spent.money * 10**18) == group.kinds.cost_billed
    take_back_credit(operator, credit.pk, now=later)
    assert gpu_seconds_of(team.pk, month, now=later) == 3 * 60


def test_running_attempt_is_not_credited(live: Life, operator: Operator) -> None:
    live.starts(0)
    live.says(10, READY)
    with pytest.raises(StillRuns):
        give(live, operator)


@pytest.mark.parametrize(
    ("end", "refusal"),
    [
        ({"outcome": "succeeded"}, NothingToCredit),
        ({"outcome": "failed", "failure_class": "timeout", "message": "too long"}, NothingToCredit),
        (
            {"outcome": "failed", "failure_class": "infrastructure", "cause": "node_lost", "message": "gone"},
            CreditedAlready,
        ),
    ],
    ids=["succeeded", "own limit", "named cause"],
)
def test_attempt_without_billed_fault_is_refused(
    live: Life, operator: Operator, end: dict[str, Any], refusal: type[Conflict]
) -> None:
    live.starts(0)
    live.says(10, READY)
    live.finishes(50, **end)
    with pytest.raises(refusal):
        give(live, operator)
    assert not AttemptCredit.objects.exists()


def test_same_call_twice_gives_one_credit_another_reason_none(live: Life, operator: Operator) -> None:
    fails(live)
    settle_reservations()
    first = give(live, operator)
    assert give(live, operator) == first
    with pytest.raises(CreditedAlready):
        give(live, operator, reason="Something else")
    for _ in range(2):
        take_back_credit(operator, first.pk, now=live.at(2_000))
    assert live.kinds.credited == 0
    assert give(live, operator).pk != first.pk and live.kinds.credited == live.kinds.fault


@pytest.mark.parametrize("reason", ["", "x" * 301])
def test_reason_is_required_and_bounded(live: Life, operator: Operator, reason: str) -> None:
    fails(live)
    with pytest.raises(Invalid):
        give(live, operator, reason=reason)


@pytest.mark.parametrize("job_id", ["job_" + "0" * 20, "nothing", "a\x00b"])
def test_unknown_attempt_is_not_found(live: Life, operator: Operator, job_id: str) -> None:
    with pytest.raises(NotFound):
        give_credit(operator, job_id, 1, reason=REASON, now=live.at(0))
    with pytest.raises(NotFound):
        give_credit(operator, live.job.pk, 7, reason=REASON, now=live.at(0))
    with pytest.raises(NotFound):
        take_back_credit(operator, 10**6, now=live.at(0))


def test_both_acts_are_in_the_teams_audit_log(live: Life, operator: Operator, team: Team) -> None:
    fails(live)
    credit = give(live, operator)
    take_back_credit(operator, credit.pk, now=live.at(2_000))
    entries = list(AuditEntry.objects.filter(team_id=team.pk, action__startswith="credit.").order_by("seq"))
    assert [(entry.action, entry.actor, entry.target) for entry in entries] == [
        ("credit.given", operator.name, live.job.pk),
        ("credit.taken_back", operator.name, live.job.pk),
    ]
    assert entries[0].data == {"credit": str(credit.pk), "attempt": 1, "reason": REASON}


def test_settled_kinds_and_cost_still_never_change(live: Life) -> None:
    fails(live)
    settle_reservations()
    for change in ({"cost": 7}, {"fault_us": 1}, {"held_us": 1}, {"team": None}):
        with pytest.raises(DatabaseError), transaction.atomic():
            UsageSlice.objects.update(**change)
    with pytest.raises(DatabaseError), transaction.atomic():
        UsageSlice.objects.update(credited_us=10**12)


@pytest.mark.django_db(transaction=True)
def test_two_operators_and_the_settling_at_once_credit_once(
    live: Life, operator: Operator, in_own_connection: Callable[..., Any]
) -> None:
    fails(live)
    before = live.kinds
    acts = [lambda: give(live, operator), lambda: give(live, operator), settle_reservations]
    race(*[in_own_connection(act) for act in acts])
    settle_reservations()
    assert active_credits().count() == 1
    assert live.kinds == replace(before, credited=before.fault)
    credit = active_credits().get()
    race(*[in_own_connection(lambda: take_back_credit(operator, credit.pk, now=live.at(2_000))) for _ in range(2)])
    assert live.kinds == before


# ── REST and pages ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def olgas(olga: User, other_team: Team, make_key: MakeKey) -> Api:
    """The operator is a member of another team."""
    other_team.memberships.create(user=olga, role="viewer")
    return Api(make_key(olga, scopes=("quota:write",)))


def test_operator_credits_by_rest_and_the_team_reads_why(
    live: Life, olgas: Api, make_key: MakeKey, alice: User, charlie: User
) -> None:
    fails(live)
    settle_reservations()
    wish = {"job": live.job.pk, "attempt": 1, "reason": REASON}
    given = olgas.post("/operator/credits", wish)
    assert given.status_code == 201 and given.json()["taken_back_at"] is None
    assert olgas.post("/operator/credits", wish).json() == given.json()
    reader = Api(make_key(alice, scopes=("usage:read",)))
    usage = reader.get(f"/jobs/{live.job.pk}/usage").json()
    assert [(row["attempt"], row["reason"]) for row in usage["credits"]] == [(1, REASON)]
    assert usage["total"]["billed"] == usage["total"]["held"] - usage["total"]["fault"]
    taken = olgas.post(f"/operator/credits/{given.json()['id']}/take-back")
    assert taken.json()["taken_back_at"]
    assert reader.get(f"/jobs/{live.job.pk}/usage").json()["credits"] == []
    assert [row["id"] for row in olgas.get("/operator/credits", job=live.job.pk).json()["data"]] == [taken.json()["id"]]
    for outsider in (alice, charlie):
        assert Api(make_key(outsider)).post("/operator/credits", wish).status_code == 403


@pytest.fixture
def browser(olga: User) -> Iterator[Client]:
    client = Client()
    client.force_login(olga)
    yield client


def test_operator_credits_on_the_page_and_undoes_it(live: Life, browser: Client, alice: User) -> None:
    fails(live)
    settle_reservations()
    page = reverse("operator_credits")
    assert live.job.pk in browser.get(page).content.decode()
    sent = {"job": live.job.pk, "attempt": "1", "reason": "A <b>switch</b>"}
    answer = browser.post(reverse("operator_give_credit"), sent, follow=True).content.decode()
    assert "is credited" in answer and "Undo" in answer and billed_failures() == []
    teams = Client()
    teams.force_login(alice)
    assert "A &lt;b&gt;switch&lt;/b&gt;" in teams.get(reverse("job_usage", args=[live.job.pk])).content.decode()
    credit = active_credits().get()
    answer = browser.post(reverse("operator_take_back_credit", args=[str(credit.pk)]), follow=True).content.decode()
    assert "is taken back" in answer and "taken back" in answer
    assert [each.attempt.job_id for each in billed_failures()] == [live.job.pk]


@pytest.mark.parametrize(("failure_class", "listed"), [("user_code", ["user_code"]), ("timeout", [])])
def test_failure_that_only_the_job_records_is_listed(live: Life, failure_class: str, listed: list[str]) -> None:
    fails(live, failure_class=failure_class)
    JobAttempt.objects.filter(job=live.job).update(failure_class="")
    assert [each.failure_class for each in billed_failures()] == listed


def test_page_finds_by_job_and_reports_refusals(live: Life, browser: Client) -> None:
    fails(live)
    assert "No billed failures" in browser.get(reverse("operator_credits"), {"job": "job_none"}).content.decode()
    sent = {"job": live.job.pk, "attempt": "1", "reason": ""}
    assert "Reason must have" in browser.post(reverse("operator_give_credit"), sent, follow=True).content.decode()
    assert not AttemptCredit.objects.exists()
