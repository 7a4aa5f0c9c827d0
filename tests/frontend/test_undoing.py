"""Messages on the next page, with Undo for actions that can be fully reverted."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from backend.accounts.models import Membership, User
from backend.api.etags import etag_of
from backend.budgets.models import SpendingLimit, Unit
from backend.checkpoints.models import Retention
from backend.checkpoints.registry.versions import promote
from backend.jobs.models import Job
from backend.pages.operator.undo_forms import undo_money
from backend.pages.undoing import UndoForm, undo_of
from backend.pools.models import Budget, TeamQuota
from backend.webhooks.models import WebhookEndpoint
from tests.frontend import seed
from tests.frontend.job.driver_facts import saved
from tests.frontend.seed import World

pytestmark = pytest.mark.django_db

FORM: Final = "application/x-www-form-urlencoded"
AsUser = Callable[[User], Client]


def done(client: Client, address: str, fields: dict[str, str]) -> tuple[str, UndoForm | None]:
    """The message on the next page, and its Undo."""
    answer = client.post(address, urlencode(fields), FORM)
    assert answer.status_code == 302, answer.content
    *_, message = get_messages(answer.wsgi_request)  # earlier ones were not displayed yet
    assert message.level_tag == "success", message
    return str(message), undo_of(message)


def undone(client: Client, way: UndoForm | None) -> tuple[str, UndoForm | None]:
    assert way is not None
    return done(client, way.address, dict(way.fields))


def test_a_rule_about_checkpoints_is_what_it_was(owner: Client, world: World) -> None:
    job, address = seed.finished(world, steps=3), ""
    address = reverse("job_retention", args=[job.pk])
    first = {"keep_last": "4", "keep_best": "2", "metric": "reward/mean", "days": "9"}
    done(owner, address, first)
    before = Retention.objects.values("keep_last", "keep_best", "metric", "ttl_s").get(job=job)
    _, way = done(owner, address, first | {"keep_last": "1", "days": ""})
    undone(owner, way)
    assert Retention.objects.values("keep_last", "keep_best", "metric", "ttl_s").get(job=job) == before
    assert done(owner, address, first)[1] is None, "no change, so no Undo"
    Retention.objects.filter(job=job).update(ttl_s=7_200)
    assert done(owner, address, first)[1] is None, "the form cannot express hours, so no Undo"


def test_a_jobs_name_tags_and_priority_are_what_they_were(owner: Client, world: World) -> None:
    job = seed.submitted(world, name="Before", tags=["one", "two"])
    _, way = done(owner, reverse("change_job", args=[job.pk]), {"name": "After", "tags": "three", "priority": "7"})
    undone(owner, way)
    assert Job.objects.values("name", "tags", "priority").get(pk=job.pk) == {
        "name": "Before", "tags": ["one", "two"], "priority": 0,
    }  # fmt: skip


def test_disabling_a_webhook_is_undone_and_redone(owner: Client, world: World) -> None:
    seed.team_affairs(world)
    endpoint = WebhookEndpoint.objects.latest("created_at")
    _, way = done(owner, reverse("change_webhook", args=[endpoint.pk]), {"act": "disable"})
    assert WebhookEndpoint.objects.get(pk=endpoint.pk).disabled_at is not None
    _, again = undone(owner, way)
    assert WebhookEndpoint.objects.get(pk=endpoint.pk).disabled_at is None
    undone(owner, again)
    assert WebhookEndpoint.objects.get(pk=endpoint.pk).disabled_at is not None


def test_undo_does_not_disable_a_failing_webhook(owner: Client, world: World) -> None:
    seed.team_affairs(world)
    endpoint = WebhookEndpoint.objects.latest("created_at")
    now = datetime.now(UTC)
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(disabled_at=now, disabled_reason="Nobody answered for days.")
    assert done(owner, reverse("change_webhook", args=[endpoint.pk]), {"act": "enable"})[1] is None


def test_a_role_is_what_it_was_and_nobody_undoes_their_own(owner: Client, world: World) -> None:
    address = reverse("change_member", args=[world.viewer.public_id])
    said, way = done(owner, address, {"role": "admin"})
    assert "is now admin" in said
    undone(owner, way)
    assert Membership.objects.get(user=world.viewer, team=world.team).role == "viewer"
    done(owner, address, {"role": "owner"})
    assert done(owner, reverse("change_member", args=[world.owner.public_id]), {"role": "viewer"})[1] is None


def test_the_note_on_a_model_is_what_it_was(owner: Client, world: World) -> None:
    job = seed.finished(world, steps=12)
    promote(saved(job, step=12).pk, name="adder", note="First", actor="user:1", now=datetime.now(UTC))
    address = reverse("change_model", args=["adder"])
    _, way = done(owner, address, {"act": "note", "number": "1", "note": "Second"})
    assert way is not None and way.fields["note"] == "First"
    undone(owner, way)
    assert done(owner, address, {"act": "note", "number": "1", "note": "First"})[1] is None


@pytest.mark.parametrize("hours", ["3.7", "0.1", "1234.5678"])
def test_a_budget_is_exactly_what_it_was(owner: Client, world: World, hours: str) -> None:
    address, whose = reverse("set_limit"), {"whose": f"project:{world.project.pk}", "unit": "device_seconds"}
    done(owner, address, whose | {"amount": hours})
    before = SpendingLimit.objects.get()
    _, way = done(owner, address, whose | {"amount": "2", "version": etag_of(before.version)})
    undone(owner, way)
    assert SpendingLimit.objects.get().amount == before.amount


def test_undo_removes_first_budget_and_restores_removed_one(owner: Client, world: World) -> None:
    fields = {"whose": f"person:{world.viewer.public_id}", "unit": "device_seconds", "amount": "2"}
    _, way = done(owner, reverse("set_limit"), fields)
    _, again = undone(owner, way)
    assert not SpendingLimit.objects.exists()
    undone(owner, again)
    assert SpendingLimit.objects.get().amount == Decimal(7_200)


def test_what_somebody_else_changed_since_is_not_undone(owner: Client, world: World) -> None:
    fields = {"whose": f"project:{world.project.pk}", "unit": "device_seconds"}
    _, way = done(owner, reverse("set_limit"), fields | {"amount": "2"})
    SpendingLimit.objects.update(amount=9, version=5)
    assert way is not None
    answer = owner.post(way.address, urlencode(way.fields), FORM)
    *_, message = get_messages(answer.wsgi_request)
    assert message.level_tag == "error"
    assert SpendingLimit.objects.get().amount == 9


def test_who_may_not_do_it_may_not_undo_it(owner: Client, viewer: Client, world: World) -> None:
    job = seed.submitted(world, name="Before")
    _, way = done(owner, reverse("change_job", args=[job.pk]), {"name": "After"})
    assert way is not None
    assert viewer.post(way.address, urlencode(way.fields), FORM).status_code == 403
    assert Job.objects.get(pk=job.pk).name == "After"


@pytest.fixture
def operator(world: World, as_user: AsUser) -> Client:
    return as_user(User.objects.create_user("olga@example.org", is_staff=True))


def test_operators_undo_quotas_priorities_and_budgets(operator: Client, world: World) -> None:
    quota = TeamQuota.objects.get(pool=world.pool, team=world.team)
    TeamQuota.objects.filter(pk=quota.pk).update(borrow_limit=3, lend_limit=None, weight=1.5)
    shape: tuple[Any, ...] = ("nominal", "borrow_limit", "lend_limit", "weight")
    before = TeamQuota.objects.values(*shape).get(pk=quota.pk)
    fields = {"team": world.team.pk, "nominal": "1", "weight": "2", "version": etag_of(world.pool.version)}
    undone(operator, done(operator, reverse("operator_quota", args=[world.pool.pk]), fields)[1])
    assert TeamQuota.objects.values(*shape).get(pk=quota.pk) == before
    job = seed.submitted(world)
    address = reverse("operator_priority", args=[world.pool.pk, job.pk])
    undone(operator, done(operator, address, {"priority": "9", "version": etag_of(job.version)})[1])
    assert Job.objects.get(pk=job.pk).priority == 0
    address = reverse("operator_budget", args=[world.team.pk])
    _, again = undone(operator, done(operator, address, {"hours": "5", "version": etag_of(0)})[1])
    assert not Budget.objects.exists()
    undone(operator, again)
    assert Budget.objects.get().gpu_seconds == 5 * 3_600


def test_an_act_that_changed_nothing_has_no_way_back(owner: Client, operator: Client, world: World) -> None:
    def twice(client: Client, address: str, fields: dict[str, str], version: int) -> UndoForm | None:
        """The second change, under the version that the first one left."""
        done(client, address, fields)
        return done(client, address, fields | {"version": etag_of(version)})[1]

    quota = {"team": world.team.pk, "nominal": "1", "weight": "1"}
    world.pool.refresh_from_db()
    first = etag_of(world.pool.version)
    done(operator, reverse("operator_quota", args=[world.pool.pk]), quota | {"version": first})
    world.pool.refresh_from_db()
    again = quota | {"version": etag_of(world.pool.version)}
    assert done(operator, reverse("operator_quota", args=[world.pool.pk]), again)[1] is None
    budget, none = reverse("operator_budget", args=[world.team.pk]), {"version": etag_of(0)}
    assert twice(operator, budget, {"hours": "0"} | none, 1) is None
    _, way = done(operator, budget, {"hours": "", "version": etag_of(2)})
    assert way is not None, "nothing at all is not no limit"
    five, six = (SpendingLimit(team=world.team, unit=Unit.MONEY, amount=Decimal(each), version=1) for each in (5, 6))
    assert undo_money(world.team, five, five) is None and undo_money(world.team, five, six) is not None
    limit = {"whose": f"project:{world.project.pk}", "unit": "device_seconds", "amount": "2"}
    assert twice(owner, reverse("set_limit"), limit, 1) is None
