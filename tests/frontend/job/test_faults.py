"""A job's faults and their handling, why it waits or failed, and its usage."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.test import Client

from backend.jobs.lifecycle import change_state, locked_job, record_event
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.retrying import retry_job
from backend.jobs.submitting.submit import Submitter
from tests.frontend import seed
from tests.frontend.html_reading import words_of
from tests.frontend.job.driver_facts import send_facts
from tests.frontend.seed import World

TRACE = 'Traceback (most recent call last):\n  File "/box/grader.py", line 41\nZeroDivisionError: no words'


def fault(part: str, message: str, action: str) -> dict[str, str]:
    return {"type": "fault_detected", "component": part, "message": message, "action": action}


def moved(job: Job, *states: JobState, at: datetime) -> None:
    with transaction.atomic():
        for number, state in enumerate(states):
            change_state(locked_job(job.pk), state, actor="engine:1", now=at + timedelta(seconds=10 * number))


def test_fault_shows_cause_action_and_outcome(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=3)
    path = f"/jobs/{job.pk}/faults/"
    assert "No faults so far." in words_of(owner.get(path)) and "Attempt 1" in words_of(owner.get(path))
    send_facts(job, fault("rollout/1", "no heartbeat for 5 s", "its prompts go back to the pool"))
    send_facts(job, fault("environment", TRACE, ""))
    page = words_of(owner.get(path))
    assert page.index("ZeroDivisionError: no words") < page.index("no heartbeat for 5 s"), "the newest first"
    assert "its prompts go back to the pool" in page and "not recorded" in page
    assert page.count("the job's state did not change") == 2
    assert page.count("line 41") == 1 and "<details" in page.split("line 41")[0], "the trace is folded"


def test_recovered_fault_shows_duration(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=3)
    send_facts(job, fault("trainer", "it died", "the run begins again from the newest checkpoint"))
    at = job.events.latest("seq").at
    moved(job, JobState.RECOVERING, JobState.RUNNING, at=at + timedelta(seconds=2))
    page = words_of(owner.get(f"/jobs/{job.pk}/faults/"))
    assert "the job ran again after 12 s" in page
    with transaction.atomic():
        stalled = "Its driver has not moved for 60 s."
        record_event(locked_job(job.pk), "stalled", actor="reconcile", now=at + timedelta(minutes=1), message=stalled)
    assert stalled in words_of(owner.get(f"/jobs/{job.pk}/faults/"))


def test_an_attempt_that_failed_says_how(world: World, owner: Client) -> None:
    job = seed.failed_with_evidence(world, at=datetime.now(UTC) - timedelta(hours=1))
    page = words_of(owner.get(f"/jobs/{job.pk}/faults/"))
    assert "failed: user code" in page and "The environment keeps crashing" in page and "it dies" in page


def test_why_it_waits_is_told_on_its_own_page(world: World, owner: Client, viewer: Client) -> None:
    running = seed.running(world, steps_done=1, rollout={"replicas": 40})
    job = seed.submitted(world, name="Big one", rollout={"replicas": 60})
    schedule_pool(world.pool.pk, now=datetime.now(UTC))
    page = words_of(owner.get(f"/jobs/{job.pk}/"))
    assert "Why it waits" in page and "Queue position</dt><dd><b>1</b> of 1" in page
    assert "a smaller job would start <b>now</b>" in page and f"/jobs/new?from={job.pk}" in page
    assert f"/jobs/new?from={job.pk}" not in words_of(viewer.get(f"/jobs/{job.pk}/")).split("Why it waits")[1]
    assert "Why it waits" not in words_of(owner.get(f"/jobs/{running.pk}/"))


@pytest.mark.parametrize("tab", ["", "metrics/", "logs/", "usage/"])
def test_a_failed_job_leads_to_why_from_every_tab(world: World, owner: Client, tab: str) -> None:
    job = seed.failed(world)
    page = words_of(owner.get(f"/jobs/{job.pk}/{tab}"))
    assert ("Failed: config" in page) == (tab == "")
    assert (f'href="/jobs/{job.pk}/#region-why"' in page) == (tab != "")


def test_what_its_devices_went_into_is_told(world: World, owner: Client) -> None:
    queued = seed.submitted(world, name="Not yet")
    assert "No usage yet" in words_of(owner.get(f"/jobs/{queued.pk}/usage/"))
    job = seed.finished(world, steps=3, at=datetime.now(UTC) - timedelta(hours=2))
    page = words_of(owner.get(f"/jobs/{job.pk}/usage/"))
    assert "GPU-hours held" in page and "useful" in page and '<th scope="row">trainer</th>' in page
    assert "still" not in page.split("Devices held")[1]


def test_a_retry_says_what_its_spec_has_that_the_first_has_not(world: World, owner: Client) -> None:
    first = seed.failed(world, name="Sums")
    by, now = Submitter(user=world.owner, key=None), datetime.now(UTC)
    same = retry_job(first, start_from="start", changes={}, by=by, now=now)
    longer = retry_job(first, start_from="start", changes={"training": {"steps": 240}}, by=by, now=now)
    page = words_of(owner.get(f"/jobs/{longer.pk}/config/"))
    assert f'Changed since <a href="/jobs/{first.pk}/config/" dir="auto">Sums</a>' in page
    assert '<code>training.steps</code></th><td dir="auto">120</td><td dir="auto"><b>240</b>' in page
    assert page.count('<th scope="row"><code>') == 1
    assert "Only the name." in words_of(owner.get(f"/jobs/{same.pk}/config/"))
    assert "Changed since" not in words_of(owner.get(f"/jobs/{first.pk}/config/"))
