"""Retry, start from a checkpoint, change, kill, cancel several, and the filters of the list."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from backend.accounts.models import Project, User
from backend.audit.models import AuditEntry
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState, OutboxMessage
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import ResourcePool
from backend.telemetry.intake.ingest import ingest_facts
from engine.spec.control import FactBatch
from engine.spec.job import JobSpec
from tests.backend.conftest import Api, MakeCheckpoint, MakeJob


@pytest.fixture
def over(job: Job, now: datetime) -> Job:
    cancel_job(job.pk, actor="user:1", now=now)
    job.refresh_from_db()
    return job


class TestRetry:
    def test_retry_starts_at_newest_checkpoint_with_changes(
        self, api: Api, over: Job, make_checkpoint: MakeCheckpoint
    ) -> None:
        make_checkpoint(over, step=10)
        newest = make_checkpoint(over, step=20)
        before: dict[str, Any] = {**Job.objects.filter(pk=over.pk).values().get()}
        answer = api.post(f"/jobs/{over.pk}/retry", {"changes": {"training": {"steps": 300}, "max_runtime_s": 600}})
        assert answer.status_code == 202, answer.content
        child = Job.objects.get(pk=answer.json()["id"])
        assert answer["Location"].endswith(child.pk)
        assert (child.parent_id, child.start_from, child.step) == (over.pk, newest.pk, 20)
        assert (child.steps, child.max_runtime_s, child.spec["training"]["steps"]) == (300, 600, 300)
        assert child.spec["training"]["seed"] == over.spec["training"]["seed"]
        after: dict[str, Any] = {**Job.objects.filter(pk=over.pk).values().get()}
        assert {name for name in before if before[name] != after[name]} == {"cursor"}
        assert over.events.latest("seq").data == {"job": child.pk}
        assert AuditEntry.objects.latest("seq").action == "job.retry"

    def test_from_is_a_checkpoint_or_start(
        self, api: Api, over: Job, make_checkpoint: MakeCheckpoint, make_job: MakeJob
    ) -> None:
        older, _ = make_checkpoint(over, step=10), make_checkpoint(over, step=20)
        path = f"/jobs/{over.pk}/retry"
        assert api.post(path, {"from": older.pk}).json()["start_from"] == older.pk
        assert api.post(path, {"from": "start"}).json()["start_from"] is None
        of_another = make_checkpoint(make_job(), step=5)
        assert api.post(path, {"from": of_another.pk}).status_code == 404

    def test_the_same_key_retries_once(self, api: Api, over: Job) -> None:
        first, second = (api.post(f"/jobs/{over.pk}/retry", {}, key="again") for _ in range(2))
        assert first.json()["id"] == second.json()["id"] and second["Idempotency-Replayed"] == "true"
        assert Job.objects.filter(parent=over).count() == 1

    def test_invalid_change_is_refused_with_its_place(self, api: Api, over: Job) -> None:
        refused = api.post(f"/jobs/{over.pk}/retry", {"changes": {"training": {"steps": -1}}})
        assert refused.status_code == 422
        assert [error["pointer"] for error in refused.json()["errors"]] == ["/changes/training/steps"]

    def test_checkpoint_at_the_last_step_is_refused(self, api: Api, over: Job, make_checkpoint: MakeCheckpoint) -> None:
        make_checkpoint(over, step=100)
        refused = api.post(f"/jobs/{over.pk}/retry", {})
        assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "nothing_left")

    def test_only_ended_jobs_are_retried(self, api: Api, job: Job) -> None:
        assert api.post(f"/jobs/{job.pk}/retry", {}).json()["code"] == "invalid_state"


class TestStartFrom:
    def test_new_job_starts_from_a_team_checkpoint(
        self, api: Api, over: Job, project: Project, make_checkpoint: MakeCheckpoint
    ) -> None:
        checkpoint = make_checkpoint(over, step=10)
        body = {"project": project.pk, "spec": over.spec, "start_from": checkpoint.pk}
        answer = api.post("/jobs", body)
        assert answer.status_code == 202, answer.content
        assert (answer.json()["state"], answer.json()["start_from"]) == ("validating", checkpoint.pk)
        other_model = {**body, "spec": {**over.spec, "trainer": {"lora_rank": 4}}}
        assert api.post("/jobs", other_model).json()["errors"][0]["pointer"] == "/spec/trainer/lora_rank"

    def test_another_teams_checkpoint_does_not_exist(
        self,
        api_of: Any,
        charlie: User,
        over: Job,
        pool: ResourcePool,
        other_project: Project,
        make_checkpoint: MakeCheckpoint,
    ) -> None:
        checkpoint = make_checkpoint(over, step=10)
        spec = {**over.spec, "placement": {"preemptible": True}}  # their quota only allows borrowing
        answers = [
            api_of(charlie).post("/jobs", {"project": other_project.pk, "spec": spec, "start_from": one}).json()
            for one in (checkpoint.pk, "ckpt_" + "0" * 20)
        ]
        assert [(answer["status"], answer["detail"]) for answer in answers] == [(404, "Checkpoint not found.")] * 2


class TestChange:
    def test_concurrent_change_is_not_overwritten(self, api: Api, job: Job) -> None:
        path = f"/jobs/{job.pk}"
        tag = api.get(path)["ETag"]
        changed = self.patch(api, path, {"name": "Better", "tags": ["a", "b"]}, tag)
        assert changed.status_code == 200 and changed["ETag"] != tag
        assert (changed.json()["name"], changed.json()["tags"]) == ("Better", ["a", "b"])
        stale = self.patch(api, path, {"name": "Worse"}, tag)
        assert (stale.status_code, stale["ETag"]) == (412, changed["ETag"])
        job.refresh_from_db()
        assert job.name == "Better" and job.spec["name"] == "Sums", "the spec never changes"
        event = job.events.latest("seq")
        assert (event.type, event.data["before"]["name"], event.data["after"]["name"]) == ("changed", "Sums", "Better")

    def test_priority_changes_only_while_job_waits(self, api: Api, job: Job, pool: ResourcePool, now: datetime) -> None:
        path = f"/jobs/{job.pk}"
        OutboxMessage.objects.all().delete()
        assert self.patch(api, path, {"priority": 5}).json()["priority"] == 5
        assert OutboxMessage.objects.get().topic == "schedule", "the queue has changed"
        schedule_pool(pool.pk, now=now)
        refused = self.patch(api, path, {"priority": 9, "name": "x"})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (409, "/priority")
        assert self.patch(api, path, {"name": "x"}).status_code == 200

    def test_ended_job_cannot_be_changed(self, api: Api, over: Job) -> None:
        assert self.patch(api, f"/jobs/{over.pk}", {"name": "x"}).status_code == 409

    def test_change_to_same_value_is_a_no_op(self, api: Api, job: Job) -> None:
        tag = api.get(f"/jobs/{job.pk}")["ETag"]
        assert self.patch(api, f"/jobs/{job.pk}", {"name": job.name})["ETag"] == tag
        assert job.events.count() == 1

    def patch(self, api: Api, path: str, body: dict[str, Any], tag: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {api.key}"} | ({"If-Match": tag} if tag else {})
        return api.client.patch(f"/api/v1{path}", body, content_type="application/json", headers=headers)


class TestKill:
    def test_admin_kills_stuck_job_and_its_engine_is_fenced(self, api: Api, job: Job, attempt: JobAttempt) -> None:
        cancel_job(job.pk, actor="user:1", now=attempt.created_at)
        assert [api.post(f"/jobs/{job.pk}/kill").status_code for _ in range(2)] == [202, 200]
        job.refresh_from_db()
        assert (job.state, job.reason) == ("cancelled", "killed")
        assert not job.reservations.filter(released_at=None).exists()
        assert OutboxMessage.objects.filter(topic="stop", key=job.pk).exists()
        entry = AuditEntry.objects.latest("seq")
        assert (entry.action, entry.target, entry.data) == ("job.kill", job.pk, {"state": "stopping"})

    @pytest.mark.parametrize("state", [JobState.RUNNING, JobState.RECOVERING, JobState.PAUSING])
    def test_kill_from_every_holding_state(
        self, api: Api, job: Job, attempt: JobAttempt, now: datetime, state: JobState
    ) -> None:
        with transaction.atomic():
            change_state(locked_job(job.pk), state, actor="x", now=now)
        assert api.post(f"/jobs/{job.pk}/kill").json()["state"] == "cancelled"


def test_several_jobs_are_cancelled_independently(
    api: Api, job: Job, attempt: JobAttempt, make_job: MakeJob, other_project: Project, charlie: User, now: datetime
) -> None:
    waiting, done = make_job(), make_job()
    with transaction.atomic():
        locked = locked_job(done.pk)
        change_state(locked, JobState.FAILED, actor="scheduler", now=now, failure_class="config")
    theirs = submit_job(
        team=other_project.team,
        project=other_project,
        by=Submitter(user=charlie, key=None),
        spec=JobSpec.model_validate({"name": "theirs", "placement": {"preemptible": True}}),
        pool=job.pool,
        now=now,
    )
    ids = [job.pk, waiting.pk, done.pk, theirs.pk, "job_nothing"]
    answer = api.post("/jobs:cancel", {"ids": ids})
    results = [row["result"] for row in answer.json()["data"]]
    assert results == ["cancelled", "cancelled", "finished", "not_found", "not_found"]
    assert [row["id"] for row in answer.json()["data"]] == ids
    assert api.post("/jobs:cancel", {"ids": [job.pk]}).json()["data"][0]["result"] == "already"
    theirs.refresh_from_db()
    assert theirs.state == "queued"


def test_list_is_filtered(api: Api, make_job: MakeJob, alice: User, bob: User, now: datetime) -> None:
    first = make_job(name="Long sums", tags=["a", "b"])
    second = make_job(name="Short sums", tags=["b"], user=bob, at=now + timedelta(hours=1))
    third = make_job(name="Tools", at=now + timedelta(hours=2))

    def ids_of(**query: Any) -> list[str]:
        return [row["id"] for row in api.get("/jobs", **query).json()["data"]]

    assert ids_of(tag="b") == [second.pk, first.pk] and ids_of(tag=["a", "b"]) == [first.pk]
    assert ids_of(q="SUMS") == [second.pk, first.pk] and ids_of(q=third.pk) == [third.pk]
    assert ids_of(created_by=bob.email) == [second.pk]
    assert ids_of(since=(now + timedelta(hours=1)).isoformat()) == [third.pk, second.pk]
    assert ids_of(q="sums", created_by=alice.email) == [first.pk]


def test_faults_are_listed_newest_first(api: Api, job: Job, attempt: JobAttempt, now: datetime) -> None:
    bodies = [
        {"type": "fault_detected", "component": f"rollout/{n}", "message": "died", "action": "replaced"} for n in (0, 1)
    ]
    facts = [{"seq": n, "at": now, "body": body} for n, body in enumerate(bodies, start=1)]
    ingest_facts(attempt, FactBatch.model_validate({"attempt": 1, "fence": 1, "facts": facts}), now=now)
    rows = api.get(f"/jobs/{job.pk}/faults").json()["data"]
    assert [(row["component"], row["attempt"], row["action"]) for row in rows] == [
        ("rollout/1", 1, "replaced"),
        ("rollout/0", 1, "replaced"),
    ]
