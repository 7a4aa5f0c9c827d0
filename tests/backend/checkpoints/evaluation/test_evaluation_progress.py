"""Progress of an evaluation: from the engine's report to REST, the open page, and the list."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import User
from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.pages.job.panels.tiles import time_left
from backend.pools.models import ResourcePool
from tests.backend.conftest import NOW, Api, MakeJob
from tests.backend.telemetry.test_ingest import FINISHED, READY, Driver, step

pytestmark = pytest.mark.django_db

PROMPTS = 40


def answered(n: int, **changes: Any) -> dict[str, Any]:
    return {"type": "prompts_answered", "version": 0, "num_answered": n, "num_prompts": PROMPTS} | changes


def told(n: int) -> dict[str, Any]:
    return {"done": n, "total": PROMPTS, "unit": "prompts"}


@pytest.fixture
def job(make_job: MakeJob) -> Job:
    return make_job(training={"steps": 0}, rollout={"replicas": 1}, evaluation={"prompts": PROMPTS})


@pytest.fixture
def driver(attempt: JobAttempt) -> Driver:
    driver = Driver(attempt)
    assert driver.say(READY).status_code == 200
    return driver


@pytest.fixture
def browser(alice: User) -> Client:
    client = Client()
    client.force_login(alice)
    return client


def shown(api: Api, job: Job) -> dict[str, Any]:
    one: dict[str, Any] = api.get(f"/jobs/{job.pk}").json()["progress"]
    [listed] = [each["progress"] for each in api.get("/jobs").json()["data"] if each["id"] == job.pk]
    assert one == listed
    return one


class TestRest:
    def test_progress_is_the_engines_last_report(self, api: Api, job: Job, driver: Driver) -> None:
        assert shown(api, job) == told(0)
        driver.say(answered(3))
        assert shown(api, job) == told(3)
        driver.say(answered(17), answered(39), answered(40))
        assert shown(api, job) == told(40)

    def test_it_stays_when_the_job_is_over(self, api: Api, job: Job, driver: Driver) -> None:
        driver.say(answered(12), FINISHED | {"outcome": "failed", "failure_class": "config", "message": "no"})
        assert api.get(f"/jobs/{job.pk}").json()["state"] == "failed" and shown(api, job) == told(12)

    def test_another_attempt_starts_over(self, api: Api, job: Job, driver: Driver) -> None:
        driver.say(answered(12))
        locked = locked_job(job.pk)
        change_state(locked, JobState.RECOVERING, actor="reconcile", now=NOW)
        assert shown(api, job) == told(12)
        begin_attempt(locked, now=NOW)
        assert shown(api, job) == told(0)

    def test_where_something_is_trained_its_steps_are_counted(
        self, api: Api, make_job: MakeJob, pool: ResourcePool
    ) -> None:
        job = make_job(training={"steps": 9})
        schedule_pool(pool.pk, now=NOW)
        Driver(job.attempts.get()).say(READY, step(1), answered(5), step(2))
        assert shown(api, job) == {"done": 2, "total": 9, "unit": "steps"}

    @pytest.mark.parametrize("wrong", [{"num_answered": -1}, {"num_answered": 65_537}, {"num_prompts": 0}])
    def test_a_count_that_cannot_be_is_no_fact(self, driver: Driver, wrong: dict[str, int]) -> None:
        assert driver.send(2, answered(1, **wrong)).status_code == 422


class TestThePage:
    def test_an_open_page_pulls_what_is_new(self, job: Job, driver: Driver, browser: Client) -> None:
        before = browser.get(f"/jobs/{job.pk}/live?after=0").json()
        driver.say(*(answered(n) for n in range(1, 8)))
        after = browser.get(f"/jobs/{job.pk}/live?after={before['cursor']}").json()
        assert after["job"]["progress"] == told(7)
        assert after["cursor"] == before["cursor"] + 1, "seven counts in one batch are one notification"
        assert after["events"] == [] and after["series"] == {}

    def test_the_page_and_the_list_draw_its_bar(self, job: Job, driver: Driver, browser: Client) -> None:
        driver.say(answered(17))
        for path in (f"/jobs/{job.pk}/", "/jobs/"):
            assert f'<progress max="{PROMPTS}" value="17"' in browser.get(path).content.decode()

    def test_how_long_it_takes_is_predicted_by_what_is_answered(self, job: Job, driver: Driver) -> None:
        def left(n: int) -> timedelta | None:
            driver.say(answered(n))
            job.refresh_from_db()
            job.started_at = NOW - timedelta(seconds=60)
            return time_left(job, None, now=NOW)

        assert left(3) is None, "the first are the short ones"
        assert (left(10), left(20)) == (timedelta(seconds=180), timedelta(seconds=60))

    def test_restarted_evaluation_has_no_prediction(self, job: Job, driver: Driver) -> None:
        locked = locked_job(job.pk)
        change_state(locked, JobState.RECOVERING, actor="reconcile", now=NOW)
        Driver(begin_attempt(locked, now=NOW)).say(READY, answered(20))
        job.refresh_from_db()
        assert job.started_at is not None and time_left(job, None, now=NOW + timedelta(minutes=1)) is None
