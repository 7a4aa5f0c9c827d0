"""Quota requests: a team sends one on its queue page; an operator approves, declines or changes the number."""

import pytest
from django.test import Client

from backend.audit.models import AuditEntry
from backend.pools.models import TeamQuota
from backend.quota_requests.models import QuotaRequest
from tests.frontend.html_reading import text_of
from tests.frontend.operator.test_operator_pages import operator
from tests.frontend.seed import World

__all__ = ["operator"]  # the fixture


def asked(client: Client, world: World, **typed: str) -> str:
    form = {"pool": world.pool.pk, "wanted": "2", "reason": "A sweep of seeds"} | typed
    return text_of(client.post("/queue/ask", form, follow=True))


def version(world: World) -> str:
    world.pool.refresh_from_db()
    return f'"{world.pool.version}"'


def test_yes_sets_the_quota_and_is_seen_by_the_team(world: World, owner: Client, operator: Client) -> None:
    assert "No operator has answered yet" in asked(owner, world)
    assert "open request for this pool already" in asked(owner, world), "one open question a team and pool"
    assert "A sweep of seeds" in text_of(operator.get("/operator/questions/"))
    question = QuotaRequest.objects.get()
    form = {"act": "grant", "granted": "3", "answer": "Three, for now", "version": version(world)}
    path = f"/operator/questions/{question.pk}/answer"
    assert "has a quota of 3 devices" in text_of(operator.post(path, form, follow=True))
    assert TeamQuota.objects.get(team=world.team, pool=world.pool).nominal == 3
    page = text_of(owner.get("/queue/"))
    assert "Three, for now" in page and "Send request" in page
    assert "Another operator has answered" in text_of(
        operator.post(path, form | {"version": version(world)}, follow=True)
    )
    told = list(AuditEntry.objects.filter(team=world.team).order_by("seq").values_list("action", flat=True))
    assert told[-3:] == ["quota.asked", "quota.changed", "quota.answered"]


def test_no_changes_nothing_but_the_question(world: World, owner: Client, operator: Client) -> None:
    asked(owner, world)
    before = TeamQuota.objects.get(team=world.team, pool=world.pool).nominal
    question = QuotaRequest.objects.get()
    form = {"act": "refuse", "answer": "Not this month", "version": version(world)}
    assert "declined. The team is notified" in text_of(
        operator.post(f"/operator/questions/{question.pk}/answer", form, follow=True)
    )
    assert TeamQuota.objects.get(team=world.team, pool=world.pool).nominal == before
    assert "The request was <b>declined</b>" in text_of(owner.get("/queue/"))


def test_grant_above_capacity_is_refused_and_stays_open(world: World, owner: Client, operator: Client) -> None:
    asked(owner, world)
    question = QuotaRequest.objects.get()
    form = {"act": "grant", "granted": "999", "version": version(world)}
    assert "ust be at most" in text_of(operator.post(f"/operator/questions/{question.pk}/answer", form, follow=True))
    assert QuotaRequest.objects.get().answered_at is None


@pytest.mark.parametrize(
    ("typed", "said"),
    [({"wanted": "0"}, "Request 1 to"), ({"wanted": "many"}, "whole number"), ({"reason": ""}, "Give a reason")],
)
def test_a_wrong_question_is_not_asked(world: World, owner: Client, typed: dict[str, str], said: str) -> None:
    assert said in asked(owner, world, **typed)
    assert not QuotaRequest.objects.exists()
