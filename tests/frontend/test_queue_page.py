"""Quota and queue: holders, places, reasons and counterfactuals, without details of other teams."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import Project, User
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import Budget, ResourcePool, TeamQuota
from engine.spec.job import JobSpec
from tests.frontend import seed
from tests.frontend.seed import World, make_world

AsUser = Callable[[User], Client]


@pytest.fixture
def world(db: None) -> World:
    return make_world(capacity=8)


def page_of(client: Client, query: str = "") -> str:
    answer = client.get(f"/queue/{query}")
    assert answer.status_code == 200
    return " ".join(unescape(str(answer.content, "utf-8")).split())


def theirs(world: World, *, devices: int, name: str) -> Job:
    team = world.outsider.memberships.get().team
    borrowed = {"placement": {"preemptible": True}}
    spec = JobSpec.model_validate({"name": name, "rollout": {"replicas": devices - 1}} | borrowed)
    return submit_job(
        team=team,
        project=Project.objects.get(team=team),
        by=Submitter(user=world.outsider, key=None),
        spec=spec,
        pool=world.pool,
        now=datetime.now(UTC),
    )


def ours(world: World, *, devices: int, name: str, **changes: Any) -> Job:
    return seed.submitted(world, name=name, rollout={"replicas": devices - 1}, **changes)


@pytest.fixture
def busy(world: World) -> dict[str, Job]:
    """Of eight devices our team holds three and the other four; our team waits for five, the other for three."""
    jobs = {"runs": ours(world, devices=3, name="Running"), "theirs": theirs(world, devices=4, name="Their run")}
    assert schedule_pool(world.pool.pk, now=datetime.now(UTC)) == 2
    jobs |= {"waits": ours(world, devices=5, name="Big one"), "their line": theirs(world, devices=3, name="Their plan")}
    schedule_pool(world.pool.pk, now=datetime.now(UTC))
    return jobs


def test_who_uses_what_and_what_the_team_may_use(owner: Client, busy: dict[str, Job]) -> None:
    page = page_of(owner)
    assert 'aria-label="3 yours, 4 other teams, 1 free"' in page
    assert "<b>8</b> guaranteed" in page and "all free devices" in page and "all unused devices" in page
    assert f'/jobs/{busy["runs"].pk}/"' in page and 'Running now <span class="quiet">2</span>' in page


def test_my_place_the_one_reason_and_what_would_help(owner: Client, busy: dict[str, Job]) -> None:
    page = page_of(owner)
    assert 'Queued <span class="quiet">2</span>' in page
    assert "Pool is full.</b> The job needs 5 devices; fewer are free in pool local-cpu right now." in page
    assert "<dt>Queue position</dt><dd><b>1</b> of 2</dd>" in page
    assert "at the latest, if no other job goes ahead" in page
    assert "a smaller job would not start now either" in page and "a preemptible job would not start now either" in page


def test_what_would_start_now_is_said(owner: Client, world: World, busy: dict[str, Job]) -> None:
    """Two devices fewer: a trainer and one replica fit next to the other team's job."""
    busy["theirs"].refresh_from_db()
    seed.ended(busy["runs"], JobState.SUCCEEDED, message="done")
    page = page_of(owner)
    assert "a smaller job would start <b>now</b> with 4: 3 replicas, 1 device fewer" in page
    assert f"/jobs/new?from={busy['waits'].pk}" in page


def test_another_job_is_explained_when_somebody_asks(owner: Client, world: World, busy: dict[str, Job]) -> None:
    second = ours(world, devices=6, name="Second")
    schedule_pool(world.pool.pk, now=datetime.now(UTC))
    link = f"job={second.pk}#why"
    assert link in page_of(owner)
    page = page_of(owner, f"?job={second.pk}")
    assert f'Why <a href="/jobs/{second.pk}/"' in page and link not in page
    assert "Why <a" not in page_of(owner, f"?job={busy['their line'].pk}"), "another team's job is not explained"


def test_nothing_of_another_team_is_shown(owner: Client, outsider: Client, busy: dict[str, Job]) -> None:
    page = page_of(owner)
    assert page.count("another team") >= 2
    for job in (busy["theirs"], busy["their line"]):
        assert job.pk not in page and job.name not in page and job.team.pk not in page
    their_page = page_of(outsider)
    assert "Their plan" in their_page and "Big one" not in their_page


def test_a_viewer_sees_it_all_and_is_offered_no_submission(viewer: Client, busy: dict[str, Job]) -> None:
    page = page_of(viewer)
    assert "Big one" in page and "/jobs/new" not in page


def test_only_our_own_line_keeps_its_places(owner: Client, world: World, busy: dict[str, Job]) -> None:
    ours(world, devices=7, name="Later")
    schedule_pool(world.pool.pk, now=datetime.now(UTC))
    page = page_of(owner, "?line=ours")
    assert "Big one" in page and "Later" in page and "not shown" not in page


def test_a_long_line_is_cut_and_says_so(owner: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.pages.queue_views.SHOWN_AT_FIRST", 2)
    for each in range(4):
        ours(world, devices=2, name=f"Number {each}")
    ResourcePool.objects.update(is_open=False)
    page = page_of(owner)
    assert "Showing the first 2." in page and "line=all" in page and "Number 2</a>" not in page
    assert "Number 3</a>" in page_of(owner, "?line=all")
    assert "is closed. Running jobs may finish" in page


def test_many_holders_are_cut_and_it_is_said(
    owner: Client, busy: dict[str, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.pages.queue_views.MOST_HOLDERS", 1)
    page = page_of(owner)
    assert "Showing the 1 that started first." in page and 'Running now <span class="quiet">2</span>' in page


def test_the_budget_says_what_is_left(owner: Client, world: World, busy: dict[str, Job]) -> None:
    assert "No limit is set" in page_of(owner)
    Budget.objects.create(team=world.team, gpu_seconds=36_000)
    page = page_of(owner)
    assert "GPU-hours left of 10.00" in page and "reserved for running jobs" in page


def test_a_late_scheduler_is_told(owner: Client, busy: dict[str, Job]) -> None:
    assert "scheduler is late" not in page_of(owner)
    Job.objects.filter(state="queued").update(evaluated_at=datetime.now(UTC) - timedelta(minutes=3))
    assert "The scheduler is late" in page_of(owner)


def test_a_team_without_a_pool_is_told_what_to_do(owner: Client, world: World) -> None:
    TeamQuota.objects.filter(team=world.team).delete()
    assert "Ask an operator" in page_of(owner)
    assert "Ask an operator" in page_of(owner, "?part")


def test_an_empty_pool_says_that_it_is(owner: Client, world: World) -> None:
    page = page_of(owner)
    assert "No devices of this pool are in use" in page and "No jobs are waiting." in page


def test_a_pool_that_is_not_the_teams_does_not_exist(owner: Client, world: World) -> None:
    other = ResourcePool.objects.create(name="hidden", flavor="cpu", capacity=4)
    assert owner.get(f"/queue/?pool={other.pk}").status_code == 404
    assert owner.get("/queue/?team=team_x").status_code == 404


def test_the_part_is_what_an_open_page_takes(owner: Client, busy: dict[str, Job]) -> None:
    part = page_of(owner, "?part")
    assert "<html" not in part and "Big one" in part


def test_a_hostile_name_is_text(owner: Client, world: World) -> None:
    ours(world, devices=2, name="<script>alert(1)</script>")
    answer = str(owner.get("/queue/").content, "utf-8")
    assert "<script>alert" not in answer and "&lt;script&gt;alert" in answer


def test_strangers_are_sent_to_sign_in(db: None) -> None:
    assert Client().get("/queue/")["Location"] == "/accounts/login/?next=/queue/"
