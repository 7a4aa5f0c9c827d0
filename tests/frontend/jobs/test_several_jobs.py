"""Bulk actions on jobs: the confirmation and the results."""

import re
from urllib.parse import urlencode

import pytest
from django.test import Client

from backend.jobs.models import Job, JobState
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World


def question(client: Client, act: str, jobs: list[Job], **more: str) -> str:
    sent = {"act": act, "job": [job.pk for job in jobs], **more}
    return text_of(client.get(f"/jobs/several?{urlencode(sent, doseq=True)}"))


def answer(client: Client, act: str, jobs: list[Job], page: str = "", **more: str) -> str:
    """The job list after the action, with its messages."""
    token = re.findall(r'name="token" value="([^"]+)"', page)
    sent = {"act": act, "job": [job.pk for job in jobs], **({"token": token[0]} if token else {}), **more}
    return text_of(client.post("/jobs/several", sent_as_form(sent), FORM, follow=True))


def sent_as_form(sent: dict[str, object]) -> str:
    return urlencode(sent, doseq=True)


FORM = "application/x-www-form-urlencoded"


def state_of(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


def test_confirmation_shows_losses_and_changes_nothing(world: World, owner: Client) -> None:
    trains, waits, over = seed.running(world, steps_done=7), seed.submitted(world, name="Waits"), seed.cancelled(world)
    page = question(owner, "cancel", [trains, waits, over], sort="name")
    assert "Cancel 2 of 3 jobs?" in page
    assert "One of them loses steps since the last checkpoint: 7 steps in total." in page
    assert f"They release {trains.devices} devices." in page
    assert "The job was cancelled, so you cannot cancel it." in page
    assert f'name="job" value="{over.pk}"' not in page and '<a class="button" href="/jobs/?sort=name">' in page
    assert [state_of(job) for job in (trains, waits, over)] == ["running", "queued", "cancelled"]


def test_impossible_jobs_are_reported_and_others_done(world: World, owner: Client) -> None:
    over, trains = seed.finished(world, steps=2), seed.running(world, steps_done=2)
    waits = seed.submitted(world, rollout={"replicas": 63})
    page = answer(owner, "cancel", [trains, waits, over])
    assert (state_of(trains), state_of(waits), state_of(over)) == ("stopping", "cancelled", "succeeded")
    assert "1 job: Request sent to the engine." in page and "1 job: The job is cancelled." in page
    assert f"{over.name}: The job has finished, so you cannot cancel it." in page


def test_several_are_paused_and_resumed(world: World, owner: Client) -> None:
    jobs = [seed.running(world, steps_done=1, name=name) for name in ("Alpha", "Beta")]
    assert "2 jobs: Request sent to the engine." in answer(owner, "pause", jobs)
    assert {state_of(job) for job in jobs} == {JobState.PAUSING}
    page = question(owner, "resume", jobs)
    assert "The pause completes first." in page
    assert "The job resumes by itself when its pause has completed." in answer(owner, "resume", jobs, page)
    assert "so you cannot resume it" in question(owner, "resume", jobs)


def test_one_showing_of_the_question_retries_each_job_once(world: World, owner: Client) -> None:
    jobs = [seed.failed(world, name=name) for name in ("Alpha", "Beta")]
    page = question(owner, "retry", jobs)
    for _ in range(2):
        answer(owner, "retry", jobs, page)
    retries = Job.objects.filter(parent__in=jobs).order_by("name")
    assert [job.name for job in retries] == ["Alpha (retry 1)", "Beta (retry 1)"]


def test_who_may_only_look_and_who_is_of_another_team_do_nothing(
    world: World, viewer: Client, outsider: Client
) -> None:
    job = seed.submitted(world, name="Alpha")
    assert "choose-" not in text_of(viewer.get("/jobs/"))
    assert "You do not have permission to" in answer(viewer, "cancel", [job])
    assert "Alpha" not in answer(outsider, "cancel", [job])
    assert state_of(job) == JobState.QUEUED


@pytest.mark.parametrize("query", ["act=cancel", "act=cancel&job=nobodys&job=x%27or"])
def test_nothing_chosen_leads_back_with_a_word(world: World, owner: Client, query: str) -> None:
    assert "Select one or more jobs first" in text_of(owner.get(f"/jobs/several?{query}", follow=True))
    assert owner.get("/jobs/several?act=explode").status_code == 404
