"""Pause, resume, cancel, kill and retry on a job's page: who is offered them, the stated losses, and the progress,
which comes only from the engine's events."""

import re
from collections.abc import Callable

import pytest
from django.db import transaction
from django.test import Client
from playwright.sync_api import expect

from backend.accounts.models import Membership, Role, User
from backend.clock import database_now
from backend.jobs.attempts.ending import land
from backend.jobs.attempts.launching import stop_superseded
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import TERMINAL_STATES, Job, JobState
from backend.pages.job.controls import CONTROLS
from backend.pages.job.request_progress import CLUSTER_ASKED, UNHEARD
from tests.backend.fake_ray import FakeRay
from tests.frontend import seed
from tests.frontend.html_reading import words_of
from tests.frontend.job.driver_facts import acknowledge, saved, send_facts
from tests.frontend.job.test_tiles import job_in
from tests.frontend.seed import World
from tests.frontend.test_browser import ARRIVES_WITHIN_MS, Visit

OFFERED = {
    JobState.VALIDATING: {"cancel"},
    JobState.QUEUED: {"cancel"},
    JobState.STARTING: {"pause", "cancel", "kill"},
    JobState.RUNNING: {"pause", "cancel", "kill"},
    JobState.RECOVERING: {"pause", "cancel", "kill"},
    JobState.PAUSING: {"cancel", "kill", "resume"},
    JobState.PAUSED: {"resume", "cancel"},
    JobState.STOPPING: {"kill"},
    **{state: {"retry"} for state in TERMINAL_STATES},
}
PAUSED = {"type": "run_finished", "outcome": "paused"}


@pytest.fixture
def member(world: World, as_user: Callable[[User], Client]) -> Client:
    user = User.objects.create_user("mo@example.org")
    Membership.objects.create(user=user, team=world.team, role=Role.MEMBER)
    return as_user(user)


def offered(client: Client, job: Job) -> set[str]:
    return set(re.findall(rf'href="/jobs/{job.pk}/(\w+)\?tab=', words_of(client.get(f"/jobs/{job.pk}/"))))


@pytest.mark.long_except("validating", "paused")
@pytest.mark.parametrize("state", JobState.values)
def test_what_a_state_allows_is_offered_to_who_may(
    world: World, owner: Client, member: Client, viewer: Client, state: str
) -> None:
    job = job_in(world, state, only_evaluates=False)
    assert offered(owner, job) == OFFERED[JobState(state)]
    assert offered(member, job) == OFFERED[JobState(state)] - {"kill"}
    assert offered(viewer, job) == set()


@pytest.mark.long_except(
    "validating-pause",
    "validating-resume",
    "validating-cancel",
    "validating-kill",
    "recovering-cancel",
    "paused-cancel",
)
@pytest.mark.parametrize("verb", [each.verb for each in CONTROLS])
@pytest.mark.parametrize("state", JobState.values)
def test_confirmation_changes_nothing_and_refusals_have_text(
    world: World, owner: Client, state: str, verb: str
) -> None:
    job = job_in(world, state, only_evaluates=False)
    job.refresh_from_db()
    question = words_of(owner.get(f"/jobs/{job.pk}/{verb}"))
    is_possible = verb in OFFERED[JobState(state)]
    assert ('<form method="post"' in question.split("data-question")[1]) == is_possible
    assert Job.objects.get(pk=job.pk).version == job.version
    if not is_possible:
        page = words_of(owner.post(f"/jobs/{job.pk}/{verb}", follow=True))
        assert f"You cannot {verb} this job because it is {state}." in page
        assert Job.objects.get(pk=job.pk).version == job.version


@pytest.mark.long
def test_the_question_says_what_is_lost(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=64)
    asked = {verb: words_of(owner.get(f"/jobs/{job.pk}/{verb}")) for verb in ("cancel", "kill", "pause")}
    assert all("No checkpoint has been saved: 64 steps are lost." in asked[verb] for verb in ("cancel", "kill"))
    assert "If it cannot save, the job starts from the beginning and trains 64 steps again." in asked["pause"]
    saved(job, step=40)
    asked = {verb: words_of(owner.get(f"/jobs/{job.pk}/{verb}")) for verb in ("cancel", "kill", "pause")}
    assert "The last checkpoint is of step 40: 24 steps are lost." in asked["cancel"]
    assert "24 steps are lost" in asked["kill"] and "without waiting for its engine or saving anything" in asked["kill"]
    assert "If it cannot save, the job resumes after step 40 and trains 24 steps again." in asked["pause"]


def test_pause_progress_comes_from_engine_events(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=12)
    said = words_of(owner.post(f"/jobs/{job.pk}/pause", follow=True))
    assert "Request sent to the engine." in said, "at once"
    assert "Pause requested" in said and world.owner.email in said and UNHEARD in said
    assert "request acknowledged" not in said.replace(UNHEARD, "")
    acknowledge(job)
    said = words_of(owner.get(f"/jobs/{job.pk}/"))
    assert "<b>request acknowledged</b>" in said and UNHEARD not in said
    saved(job, step=12)
    send_facts(job, PAUSED)
    said = words_of(owner.get(f"/jobs/{job.pk}/logs/"))
    assert "<b>the engine ended: paused</b>" in said
    assert '<b>paused</b> <span dir="auto">Will resume after step 12.' in said
    owner.post(f"/jobs/{job.pk}/resume")
    said = words_of(owner.get(f"/jobs/{job.pk}/"))
    assert "Resume requested" in said and "Waiting for devices." in said and "Pause requested" not in said


def test_an_attempt_that_ends_without_a_word_never_acknowledged(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=12)
    owner.post(f"/jobs/{job.pk}/pause")
    with transaction.atomic():
        land(locked_job(job.pk), actor="reconcile", now=database_now(), because="Nobody heard of its driver.")
    said = words_of(owner.get(f"/jobs/{job.pk}/"))
    assert "Nobody heard of its driver." in said and "request acknowledged" not in said
    assert "12 steps will be trained again" in said and '<span class="actor">reconcile</span>' in said


def test_what_came_of_it_is_not_told_for_ever(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=12)
    owner.post(f"/jobs/{job.pk}/pause")
    with transaction.atomic():
        for state in (JobState.PAUSED, JobState.QUEUED):
            change_state(locked_job(job.pk), state, actor="scheduler", now=database_now())
    assert 'class="story"' not in words_of(owner.get(f"/jobs/{job.pk}/"))


def test_killing_needs_nobodys_answer_and_an_admin(world: World, owner: Client, member: Client) -> None:
    job = seed.running(world, steps_done=12)
    assert member.get(f"/jobs/{job.pk}/kill").status_code == member.post(f"/jobs/{job.pk}/kill").status_code == 403
    said = words_of(owner.post(f"/jobs/{job.pk}/kill", follow=True))
    assert "The job is cancelled" in said and "Killed" in said and CLUSTER_ASKED in said
    stop_superseded(job.pk, FakeRay())
    said = words_of(owner.get(f"/jobs/{job.pk}/"))
    assert "Nothing was running." in said and CLUSTER_ASKED not in said
    assert Job.objects.get().state == JobState.CANCELLED


def test_whoever_asks_in_a_tab_is_back_in_it(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    assert f'href="/jobs/{job.pk}/pause?tab=logs"' in words_of(owner.get(f"/jobs/{job.pk}/logs/"))
    assert 'name="tab" value="logs"' in words_of(owner.get(f"/jobs/{job.pk}/pause?tab=logs"))
    assert owner.post(f"/jobs/{job.pk}/pause", {"tab": "logs"})["Location"] == f"/jobs/{job.pk}/logs/"
    assert owner.post(f"/jobs/{job.pk}/pause", {"tab": "//evil.example"})["Location"] == f"/jobs/{job.pk}/"


def test_a_retry_begins_where_it_was_chosen_and_once(world: World, owner: Client) -> None:
    job = seed.failed(world)
    kept = [saved(job, step=step) for step in (2, 4, 6)]
    question = words_of(owner.get(f"/jobs/{job.pk}/retry?from={kept[1].pk}"))
    assert 'step 6, the newest <span class="quiet">2 steps are trained again' in question
    assert f'value="{kept[1].pk}" checked' in question and "the beginning, with the base model" in question
    token = re.findall(r'name="token" value="([^"]+)"', question)[0]
    form = "application/x-www-form-urlencoded"
    answers = [owner.post(f"/jobs/{job.pk}/retry", f"token={token}&from={kept[1].pk}", form) for _ in range(2)]
    made = Job.objects.get(parent=job)
    assert made.start_from == kept[1].pk and made.name.endswith("(retry 1)")
    assert {answer["Location"] for answer in answers} == {f"/jobs/{made.pk}/"}
    assert "Retry of" in words_of(owner.get(f"/jobs/{made.pk}/"))
    assert owner.post(f"/jobs/{job.pk}/retry", {"token": token}).status_code == 415


def test_a_job_that_runs_is_not_retried(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    assert "You can retry it after it has ended" in words_of(owner.get(f"/jobs/{job.pk}/retry"))
    form = "application/x-www-form-urlencoded"
    said = words_of(owner.post(f"/jobs/{job.pk}/retry", f"token={'a' * 24}&from=start", form, follow=True))
    assert "cannot be retried" in said and not Job.objects.filter(parent=job).exists()


def test_name_and_tags_change_and_priority_while_queued(world: World, owner: Client, viewer: Client) -> None:
    job = seed.submitted(world)
    path = f"/jobs/{job.pk}/change"
    assert viewer.get(path).status_code == viewer.post(path).status_code == 403
    assert 'name="priority"' in words_of(owner.get(path))
    sent = {"name": "Sums, second try", "tags": "a, b", "priority": "−7", "max_runtime_s": "600"}
    assert "Changes saved." in words_of(owner.post(path, sent, follow=True))
    job.refresh_from_db()
    assert (job.name, job.tags, job.priority, job.max_runtime_s) == ("Sums, second try", ["a", "b"], -7, 600)
    for wrong in ({"name": ""}, {"priority": "many"}, {"priority": "101"}, {"max_runtime_s": "1"}):
        assert "notice error" in words_of(owner.post(path, sent | wrong, follow=True))
    running = seed.running(world, steps_done=1)
    path = f"/jobs/{running.pk}/change"
    assert 'name="priority"' not in words_of(owner.get(path))
    assert "notice error" in words_of(owner.post(path, sent, follow=True))
    assert "Changes saved." in words_of(owner.post(path, {"name": "Now it runs"}, follow=True))


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("width", [1280, 390])
def test_pausing_and_resuming_with_the_page_open(visit: Visit, width: int) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=12)
    visitor = visit(world.owner, width=width)
    page = visitor.open(f"/jobs/{job.pk}/logs/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    page.get_by_role("link", name="Pause").press("Enter")
    dialog = page.get_by_role("dialog", name="Pause this job?")
    expect(dialog).to_contain_text("trains 12 steps again")
    expect(dialog.get_by_role("button", name="Keep running")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Pause")).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Pause", exact=True).click()
    page.wait_for_url("**/logs/")
    story = page.locator(".story")
    expect(story).to_contain_text("Waiting for the engine to acknowledge")
    acknowledge(job)
    expect(story).to_contain_text("request acknowledged", timeout=ARRIVES_WITHIN_MS)
    expect(story).not_to_contain_text("Waiting for the engine")
    saved(job, step=12)
    send_facts(job, PAUSED)
    expect(page.locator(".job-head .chip")).to_have_text("paused", timeout=ARRIVES_WITHIN_MS)
    expect(story).to_contain_text("Will resume after step 12.")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator(".job-head .chip")).to_have_text("queued")
    assert not visitor.complaints


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_without_scripts_a_job_is_paused_too(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=12)
    page = visit(world.owner, scripts=False).open(f"/jobs/{job.pk}/")
    page.get_by_role("link", name="Pause").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Pause this job?")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator(".job-head .chip")).to_have_text("pausing")
