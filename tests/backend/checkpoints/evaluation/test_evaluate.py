"""Evaluating a checkpoint: a job that trains nothing, and whose result is added to the checkpoint."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import User
from backend.audit.models import AuditEntry
from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.validation import validate_job
from backend.pools.models import ResourcePool
from engine.spec.job import JobSpec
from tests.backend.conftest import NOW, Api, MakeCheckpoint, MakeJob, given_asset
from tests.backend.telemetry.test_ingest import FINISHED, READY, Driver

pytestmark = pytest.mark.django_db

STEP = 50


@pytest.fixture
def trained(make_job: MakeJob) -> Job:
    """Of a spec with all fields that only training needs."""
    return make_job(
        model={"source": "demo"},
        training={"steps": 100, "seed": 7},
        trainer={"backend": "deepspeed", "lora_rank": 4},
        resources={"trainer_devices": 2},
        rollout={"replicas": 3, "temperature": 0.7, "max_new_tokens": 33},
        evaluation={"prompts": 40, "every": 10},
        environment={"name": "running_sums", "params": {"median_terms": 3}},
        placement={"min_replicas": 1, "priority": 5},
    )


@pytest.fixture
def checkpoint(trained: Job, make_checkpoint: MakeCheckpoint) -> Checkpoint:
    checkpoint = make_checkpoint(trained, step=STEP)
    Checkpoint.objects.filter(pk=checkpoint.pk).update(state=CheckpointState.COMPLETE, verified_at=NOW)
    return Checkpoint.objects.get(pk=checkpoint.pk)


def ask(api: Api, checkpoint: Checkpoint, body: dict[str, Any] | None = None, **headers: Any) -> Any:
    return api.post(f"/checkpoints/{checkpoint.pk}/evaluate", body or {}, **headers)


def job_of(answer: Any) -> Job:
    assert answer.status_code == 202, answer.content
    return Job.objects.get(pk=answer.json()["id"])


def begun(job: Job, pool: ResourcePool) -> Driver:
    """A validated, started job whose engine has reported."""
    validate_job(job.pk, now=NOW)
    schedule_pool(pool.pk, now=NOW)
    return Driver(job.attempts.get())


def evaluated(**changes: Any) -> dict[str, Any]:
    result = {"version": STEP, "num_prompts": 38, "reward_mean": 0.75, "reward_std": 0.25, "length_mean": 12.5}
    result |= {"num_samples": 4, "reward_error": 0.041, "pass_rate": 0.875, "pass_error": 0.054}
    return {"type": "evaluated"} | result | changes


def shown(api: Api, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    listed = api.get("/checkpoints").json()["data"]
    [own] = [each["evaluations"] for each in listed if each["id"] == checkpoint.pk]
    one: list[dict[str, Any]] = api.get(f"/checkpoints/{checkpoint.pk}").json()["evaluations"]
    assert own == one == api.get(f"/jobs/{checkpoint.job_id}/checkpoints").json()["data"][0]["evaluations"]
    return one


class TestAsking:
    def test_evaluation_repeats_settings_of_the_checkpoints_job(
        self, api: Api, trained: Job, checkpoint: Checkpoint, alice: User
    ) -> None:
        answer = ask(api, checkpoint)
        job = job_of(answer)
        spec, before = JobSpec.model_validate(job.spec), JobSpec.model_validate(trained.spec)
        assert answer.headers["Location"] == f"/api/v1/jobs/{job.pk}"
        assert (job.steps, job.step, job.start_from, job.devices) == (0, STEP, checkpoint.pk, 1)
        assert (spec.resources.trainer_devices, spec.resources.devices_per_replica) == (0, 1)
        assert (job.project_id, job.pool_id, job.priority) == (trained.project_id, trained.pool_id, 5)
        assert (spec.evaluation.prompts, spec.evaluation.every, spec.training.seed) == (40, 0, 7)
        assert spec.environment == before.environment and spec.model == before.model
        assert spec.rollout == before.rollout.model_copy(update={"replicas": 1})
        assert (spec.trainer.backend, spec.trainer.lora_rank) == ("torch", 0)
        [entry] = AuditEntry.objects.filter(action="checkpoint.evaluated")
        assert (entry.target, entry.data["job"]) == (checkpoint.pk, job.pk)
        assert job.name == "Evaluate step 50 of Sums" and job.tags == ["evaluation"]

    def test_what_is_wished_for_differs(self, api: Api, checkpoint: Checkpoint) -> None:
        given_asset(checkpoint.job.team, "data", "exam.jsonl")
        environment = {"name": "jsonl", "params": {"data": "exam.jsonl"}}
        wishes = {"name": "Exam", "prompts": 9, "replicas": 2, "max_runtime_s": 60, "environment": environment}
        spec = JobSpec.model_validate(job_of(ask(api, checkpoint, wishes)).spec)
        assert (spec.name, spec.evaluation.prompts, spec.rollout.replicas, spec.max_runtime_s) == ("Exam", 9, 2, 60)
        assert (spec.environment.name, spec.environment.params) == ("jsonl", {"data": "exam.jsonl@1"})

    def test_answers_are_drawn_as_wished(self, api: Api, checkpoint: Checkpoint) -> None:
        wishes = {"samples": 4, "temperature": 0.6, "top_p": 0.95}
        spec = JobSpec.model_validate(job_of(ask(api, checkpoint, wishes)).spec)
        drawn = spec.evaluation_sampling
        assert (spec.evaluation.samples, drawn.temperature, drawn.top_p) == (4, 0.6, 0.95)

    def test_greedy_answers_take_nothing_of_how_several_were_drawn(
        self, api: Api, make_job: MakeJob, make_checkpoint: MakeCheckpoint
    ) -> None:
        drawn = {"prompts": 40, "samples": 8, "temperature": 0.6, "top_p": 0.95}
        checkpoint = make_checkpoint(make_job(evaluation=drawn), step=STEP)
        same = JobSpec.model_validate(job_of(ask(api, checkpoint)).spec)
        assert (same.evaluation.samples, same.evaluation.top_p) == (8, 0.95), "by default as its job"
        greedy = JobSpec.model_validate(job_of(ask(api, checkpoint, {"temperature": 0})).spec)
        assert (greedy.evaluation.samples, greedy.evaluation_sampling.temperature) == (1, 0)

    def test_the_same_request_twice_is_one_job(self, api: Api, checkpoint: Checkpoint) -> None:
        first, again = (ask(api, checkpoint, {"prompts": 4}, key="k-1") for _ in range(2))
        assert job_of(first) == job_of(again) and again.headers["Idempotency-Replayed"] == "true"
        assert Job.objects.filter(steps=0).count() == 1

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"replicas": 9}, "/replicas"),
            ({"pool": "large"}, "/pool"),
            ({"prompts": 0}, "/prompts"),
            ({"temperature": 0, "samples": 4}, "/samples"),
            ({"environment": {"name": "custom"}}, "/environment/code"),
            ({"steps": 3}, "/steps"),
        ],
    )
    def test_a_refusal_points_into_the_body_that_was_sent(
        self, api: Api, checkpoint: Checkpoint, body: dict[str, Any], pointer: str
    ) -> None:
        answer = ask(api, checkpoint, body)
        assert answer.status_code == 422 and Job.objects.filter(steps=0).count() == 0
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]

    @pytest.mark.parametrize(
        ("state", "is_doubted", "status", "code"),
        [
            ("corrupt", False, 409, "corrupt"),
            ("verifying", True, 425, "being_written"),
            ("deleting", False, 404, "not_found"),
            ("verifying", False, 202, None),
        ],
    )
    def test_only_weights_that_a_job_may_begin_from_are_evaluated(
        self, api: Api, checkpoint: Checkpoint, state: str, is_doubted: bool, status: int, code: str | None
    ) -> None:
        Checkpoint.objects.filter(pk=checkpoint.pk).update(state=state, is_doubted=is_doubted)
        answer = ask(api, checkpoint)
        assert (answer.status_code, answer.json().get("code")) == (status, code)

    def test_its_checkpoint_is_not_deleted_under_it(self, api: Api, checkpoint: Checkpoint) -> None:
        job_of(ask(api, checkpoint))
        refused = api.request("DELETE", f"/checkpoints/{checkpoint.pk}")
        assert (refused.status_code, refused.json()["code"]) == (409, "in_use")

    def test_the_ceiling_of_a_key_binds(self, checkpoint: Checkpoint, alice: User, make_key: Any, key_row: Any) -> None:
        text = make_key(alice)
        row = key_row(text)
        row.max_devices = 1
        row.save(update_fields=["max_devices"])
        answer = ask(Api(text), checkpoint, {"replicas": 2})
        assert (answer.status_code, answer.json()["code"]) == (409, "key_ceiling")
        assert Job.objects.filter(steps=0).count() == 0
        assert job_of(ask(Api(text), checkpoint)).devices == 1

    def test_a_job_without_steps_may_also_be_submitted_by_its_spec(
        self, api: Api, trained: Job, checkpoint: Checkpoint
    ) -> None:
        spec = {"name": "by hand", "training": {"steps": 0}, "rollout": {"replicas": 1}}
        body = {"project": trained.project_id, "spec": spec}
        assert job_of(api.post("/jobs", body | {"start_from": checkpoint.pk})).step == STEP
        assert job_of(api.post("/jobs", body)).start_from == ""


class TestTheAnswer:
    def test_evaluation_joins_checkpoint_and_its_job_succeeds(
        self, api: Api, checkpoint: Checkpoint, pool: ResourcePool
    ) -> None:
        job = job_of(ask(api, checkpoint))
        assert shown(api, checkpoint) == []
        driver = begun(job, pool)
        attempt = job.attempts.get()
        assert (attempt.resume_from, attempt.resume_step) == (checkpoint.uri, STEP)
        assert driver.say(READY, evaluated(), FINISHED | {"ledger": {"trained": 0}}).status_code == 200
        job.refresh_from_db()
        assert (job.state, job.step, job.steps) == ("succeeded", STEP, 0)
        [evaluation] = shown(api, checkpoint)
        assert (evaluation["job"], evaluation["prompts"], evaluation["environment"]) == (job.pk, 38, "running_sums")
        assert (evaluation["reward_mean"], evaluation["reward_std"], evaluation["length_mean"]) == (0.75, 0.25, 12.5)
        assert (evaluation["samples"], evaluation["reward_error"]) == (4, 0.041)
        assert (evaluation["pass_rate"], evaluation["pass_error"]) == (0.875, 0.054)
        series = api.get(f"/jobs/{job.pk}/metrics").json()["series"]
        assert {name: points[0][1] for name, points in series.items()} == {
            "evaluation/reward": 0.75, "evaluation/reward_std": 0.25, "evaluation/reward_error": 0.041,
            "evaluation/pass_rate": 0.875, "evaluation/pass_error": 0.054, "evaluation/length": 12.5,
        }  # fmt: skip
        assert api.get(f"/jobs/{job.pk}/usage").status_code == 200

    def test_paused_evaluation_reports_that_it_starts_over(
        self, api: Api, checkpoint: Checkpoint, pool: ResourcePool
    ) -> None:
        job = job_of(ask(api, checkpoint))
        driver = begun(job, pool)
        driver.say(READY)
        assert api.post(f"/jobs/{job.pk}/pause").status_code == 202
        driver.say(FINISHED | {"outcome": "paused", "message": "Paused."})
        job.refresh_from_db()
        assert (job.state, job.message) == ("paused", "Paused. The evaluation will start over.")

    def test_the_last_attempts_word_counts_once(self, api: Api, checkpoint: Checkpoint, pool: ResourcePool) -> None:
        job = job_of(ask(api, checkpoint))
        begun(job, pool).say(READY, evaluated(reward_mean=0.1))
        locked = locked_job(job.pk)
        change_state(locked, JobState.RECOVERING, actor="reconcile", now=NOW)
        again = Driver(begin_attempt(locked, now=NOW))
        again.say(READY, evaluated(reward_mean=0.9))
        assert [evaluation["reward_mean"] for evaluation in shown(api, checkpoint)] == [0.9]

    def test_the_newest_evaluation_comes_first(self, api: Api, checkpoint: Checkpoint, pool: ResourcePool) -> None:
        jobs = [job_of(ask(api, checkpoint, {"prompts": prompts})) for prompts in (1, 2)]
        for hours, job in enumerate(jobs):
            begun(job, pool).say(READY, evaluated(), FINISHED)
            job.evaluation.at = NOW + timedelta(hours=hours)
            job.evaluation.save()
        assert [evaluation["job"] for evaluation in shown(api, checkpoint)] == [job.pk for job in reversed(jobs)]

    def test_training_jobs_evaluation_is_not_the_checkpoints(
        self, api: Api, trained: Job, checkpoint: Checkpoint, pool: ResourcePool
    ) -> None:
        goes_on = job_of(
            api.post(
                "/jobs",
                {
                    "project": trained.project_id,
                    "start_from": checkpoint.pk,
                    "spec": {"name": "on", "trainer": {"backend": "deepspeed", "lora_rank": 4}},
                },
            )
        )
        Job.objects.filter(pk=trained.pk).update(queued_at=NOW + timedelta(hours=1))
        begun(goes_on, pool).say(READY, evaluated())
        assert shown(api, checkpoint) == []

    def test_a_fact_without_its_spread_is_no_fact(self, api: Api, checkpoint: Checkpoint, pool: ResourcePool) -> None:
        driver = begun(job_of(ask(api, checkpoint)), pool)
        lacking = {name: value for name, value in evaluated().items() if name != "reward_std"}
        assert driver.send(1, lacking).status_code == 422


class TestThePage:
    @pytest.fixture
    def browser(self, alice: User) -> Client:
        client = Client()
        client.force_login(alice)
        return client

    def test_it_shows_an_evaluation_and_no_progress_of_steps(
        self, api: Api, checkpoint: Checkpoint, pool: ResourcePool, browser: Client
    ) -> None:
        job = job_of(ask(api, checkpoint))
        before = browser.get(f"/jobs/{job.pk}/").content.decode()
        assert "by the weights of step 50 of <a" in before and "nothing is trained" in before
        assert "available when all prompts are answered" in before and '<progress max="40" value="0"' in before
        assert "Steps done" not in before and 'max="0"' not in before
        assert "data-plot" not in before and "reading-title" not in before, "they would stay empty"
        driver = begun(job, pool)
        driver.say(READY, evaluated(), FINISHED)
        after = browser.get(f"/jobs/{job.pk}/").content.decode()
        assert "± 0.041 (standard error), pass@1 0.88 ± 0.054" in after

    def test_the_list_shows_its_result_where_others_show_theirs(
        self, api: Api, checkpoint: Checkpoint, pool: ResourcePool, browser: Client
    ) -> None:
        job = job_of(ask(api, checkpoint))
        begun(job, pool).say(READY, evaluated(), FINISHED)
        page = browser.get("/jobs/").content.decode()
        row = page[page.index(f'id="{job.pk}"') :].partition("</tr>")[0]
        assert "0.75" in row and "<progress" in row and 'max="0"' not in row
