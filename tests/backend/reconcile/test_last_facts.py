"""The last facts of an ended driver, through a slow web server: nothing is trained again."""

from typing import Any

import pytest
from django.test import Client

from backend.jobs.attempts.tokens import attempt_token
from backend.jobs.models import JobAttempt
from backend.reconcile.judging import LAST_FACTS_GRACE_S, LAST_FACTS_LAST_DEADLINE_S
from backend.telemetry.intake import internal_api
from backend.telemetry.intake.ingest import ingest_facts
from engine.spec.control import FactBatch
from tests.backend.reconcile.conftest import S, World


@pytest.fixture
def over(world: World) -> World:
    """Ended well; the control plane has not read it yet."""
    world.run()
    world.ray_says(S.SUCCEEDED)
    return world


def test_unreachable_site_keeps_an_ended_attempt(over: World) -> None:
    over.site_is_reachable = False
    for _ in range(5):
        over.later(LAST_FACTS_GRACE_S)
    assert over.state() == ("running", 1)
    over.site_is_reachable = True
    over.later(LAST_FACTS_GRACE_S - 1)
    over.finish("succeeded")
    assert over.state() == ("succeeded", 1)


def test_reachable_site_ends_the_grace(over: World) -> None:
    over.site_is_reachable = False
    over.later(LAST_FACTS_GRACE_S + 1)
    over.site_is_reachable = True
    over.later(LAST_FACTS_GRACE_S + 1)
    assert over.state() == ("starting", 2)


def test_site_unreachable_for_long_loses_no_job(over: World) -> None:
    over.site_is_reachable = False
    for _ in range(7):
        over.later(LAST_FACTS_GRACE_S)
    assert 7 * LAST_FACTS_GRACE_S > LAST_FACTS_LAST_DEADLINE_S and over.state() == ("starting", 2)


def test_facts_that_are_being_read_keep_their_attempt(over: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_slowly(attempt: JobAttempt, batch: FactBatch, **moment: Any) -> int:
        over.later(LAST_FACTS_GRACE_S - 1)
        assert over.state() == ("running", 1)
        return ingest_facts(attempt, batch, now=over.now)

    monkeypatch.setattr(internal_api, "database_now", lambda: over.now)
    monkeypatch.setattr(internal_api, "ingest_facts", read_slowly)
    over.later(LAST_FACTS_GRACE_S - 1)
    last = {"seq": 1, "at": over.now.isoformat(), "body": {"type": "run_finished", "outcome": "succeeded"}}
    answer = Client().post(
        "/internal/engine/facts",
        {"attempt": 1, "fence": 1, "facts": [last]},
        content_type="application/json",
        headers={"Authorization": f"Bearer {attempt_token(over.job.pk, 1, 1)}"},
    )
    over.job.refresh_from_db()
    assert answer.json()["acked"] == 1 and over.state() == ("succeeded", 1)
