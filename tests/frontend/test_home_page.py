"""Home: running jobs, jobs that need attention, devices, and the jobs that start next."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from backend.accounts.models import Membership, Role, User
from backend.jobs.control.pausing import pause_job, resume_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.submitting.retrying import retry_job
from backend.jobs.submitting.submit import Submitter
from backend.pages.home.needs import FAILURES_TOLD_FOR, needs_of
from backend.quota_requests.models import QuotaRequest
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World

NOW = datetime.now(UTC)
SignedIn = Callable[[User], Client]


def told_to(user: User, *, at: datetime | None = None) -> list[tuple[str, str]]:
    return [(need.kind, need.title) for need in needs_of(user, now=at or datetime.now(UTC)).listed]


def paused(world: World, **changes: Any) -> Job:
    job = seed.running(world, steps_done=3, **changes)
    pause_job(job.pk, actor=f"user:{world.owner.pk}", now=datetime.now(UTC))
    with transaction.atomic():
        change_state(locked_job(job.pk), JobState.PAUSED, actor="engine:1", now=datetime.now(UTC))
    return job


def test_home_shows_running_jobs_needs_quota_and_queue(world: World, owner: Client) -> None:
    seed.running(world, name="Trains", steps_done=5)
    waits = seed.submitted(world, name="Waits", rollout={"replicas": 63})
    page = text_of(owner.get("/"))
    assert ">Trains</a>" in page and '<svg class="spark"' in page
    assert 'Running <span class="quiet">1</span>' in page
    assert f'<a href="/jobs/{waits.pk}/" dir="auto">Waits</a>' in page and "64 devices" in page
    assert "devices</span>" in page and "Nothing needs your attention" in page
    part = text_of(owner.get("/?part"))
    assert ">Trains</a>" in part and "<html" not in part


def test_who_is_new_is_one_click_from_a_template(world: World, owner: Client, viewer: Client) -> None:
    page = text_of(owner.get("/"))
    assert f'href="{reverse("new_job")}?template=running_sums"' in page
    assert "Needs your attention" not in page
    assert "?template=" not in (looks := text_of(viewer.get("/"))) and "Ask a team owner" in looks


def test_who_is_in_no_team_is_told_what_to_ask_for(world: World, as_user: SignedIn) -> None:
    assert "No team yet" in text_of(as_user(User.objects.create_user("new@example.org")).get("/"))


@pytest.mark.long
def test_home_lists_own_alarms_failures_and_paused_jobs(world: World, owner: Client) -> None:
    seed.doubted(world, name="Doubted")
    failed = seed.failed(world, name="Failed")
    rests = paused(world, name="Rests")
    assert told_to(world.owner) == [("alarm", "Doubted"), ("failed", "Failed"), ("paused", "Rests")]
    page = text_of(owner.get("/"))
    assert f'href="/jobs/{failed.pk}/retry" data-ask' in page and f'href="/jobs/{rests.pk}/resume" data-ask' in page
    assert "median_terms: from 2 to max_terms (64), got 80.0" in page


def test_home_omits_retried_resumed_and_old_failures(world: World) -> None:
    old, failed, rests = seed.failed(world, name="Old"), seed.failed(world, name="Failed"), paused(world)
    by = Submitter(user=world.owner, key=None)
    retry_job(failed, start_from=None, changes={}, by=by, now=datetime.now(UTC))
    resume_job(rests.pk, actor=f"user:{world.owner.pk}", now=datetime.now(UTC))
    assert told_to(world.owner) == [("failed", "Old")]
    assert told_to(world.owner, at=old.created_at + FAILURES_TOLD_FOR + timedelta(hours=1)) == []


@pytest.mark.long
def test_of_colleagues_jobs_there_is_a_number(world: World, viewer: Client) -> None:
    seed.failed(world, name="Failed")
    seed.doubted(world, name="Doubted")
    assert told_to(world.viewer) == []
    page = text_of(viewer.get("/"))
    assert '<a href="/jobs/?state=active&amp;verdict=alarm">1 with an alarm</a>' in page
    assert "1 failed in the last three days and not retried" in page


def test_a_question_for_quota_waits_for_operators_alone(world: World, owner: Client, as_user: SignedIn) -> None:
    QuotaRequest.objects.create(team=world.team, pool=world.pool, wanted=9, reason="A sweep", asked_at=NOW)
    assert "A sweep" not in text_of(owner.get("/"))
    operator = User.objects.create_user("olga@example.org", is_staff=True)
    assert told_to(operator) == [("question", world.team.name)]
    Membership.objects.create(user=operator, team=world.team, role=Role.MEMBER)
    page = text_of(as_user(operator).get("/"))
    assert "9 devices of pool local-cpu: A sweep" in page and reverse("operator_questions") in page
