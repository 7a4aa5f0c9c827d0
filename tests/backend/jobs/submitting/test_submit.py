"""POST /jobs and POST /jobs:preview."""

import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from backend.accounts.models import Project, Team
from backend.jobs.models import Job, JobEvent, OutboxMessage
from backend.pools.models import ResourcePool, TeamQuota
from engine.fit.known_models import KNOWN_CONFIGS
from tests.backend.conftest import given_asset


@pytest.fixture
def body(project: Project, pool: ResourcePool) -> dict[str, Any]:
    return {"project": project.pk, "spec": {"name": "Sums"}}


def errors(response: Any, status: int = 422) -> dict[str, str]:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    return {error["pointer"]: error["code"] for error in json.loads(response.content)["errors"]}


def nothing_was_written() -> bool:
    return not (Job.objects.exists() or JobEvent.objects.exists() or OutboxMessage.objects.exists())


def test_submitted_job_has_event_and_schedules_its_pool(api: Any, body: Any, alice: Any) -> None:
    response = api.post("/jobs", body)
    assert response.status_code == 202, response.content
    job = response.json()
    assert response["Location"] == job["links"]["self"] == f"/api/v1/jobs/{job['id']}"
    assert (job["state"], job["reason"], job["attempt"], job["devices"]) == ("queued", "not_evaluated_yet", 0, 3)
    assert (job["created_by"], job["pool"], job["step"], job["steps"]) == (alice.email, "small", 0, 100)
    assert job["spec"]["algorithm"]["group_size"] == 8, "defaults are filled in"
    assert api.get(f"/jobs/{job['id']}").json() == job
    [event] = JobEvent.objects.all()
    assert (event.seq, event.type, event.to_state) == (1, "submitted", "queued") and event.actor.startswith("key:key_")
    [message] = OutboxMessage.objects.all()
    assert (message.topic, message.key) == ("schedule", Job.objects.get().pool_id)


def test_pool_name_is_required_with_two_pools(api: Any, body: Any, team: Team) -> None:
    other = ResourcePool.objects.create(name="large", flavor="cpu", capacity=64)
    assert errors(api.post("/jobs", body | {"pool": "large"})) == {"/pool": "unknown_pool"}
    TeamQuota.objects.create(pool=other, team=team, nominal=4)
    assert errors(api.post("/jobs", body)) == {"/pool": "unknown_pool"}
    assert api.post("/jobs", body | {"pool": "large"}).json()["pool"] == "large"


@pytest.mark.parametrize(
    ("environment", "choices"),
    [
        ("running_sums", "choose from median_terms, sigma, max_terms"),
        ("reasoning_gym", "choose from allow_negation, max"),
    ],
)
def test_unknown_param_is_refused_with_choices(api: Any, body: Any, environment: str, choices: str) -> None:
    body["spec"]["environment"] = {"name": environment, "params": {"terms": 3}}
    answer = api.post("/jobs", body)
    assert errors(answer) == {"/spec/environment/params/terms": "environment_param"}
    assert choices in json.loads(answer.content)["errors"][0]["message"]
    assert nothing_was_written()


def test_all_errors_are_reported_at_once_with_places(api: Any, body: Any) -> None:
    body["spec"] |= {
        "training": {"steps": -1, "nonsense": 1},
        "rollout": {"replicas": "many", "temperature": 1e999},
        "environment": {"params": {"BAD": 1, "a": []}},
        "tags": ["ok", "", 7],
        "a/b~c": 1,
    }
    assert errors(api.post("/jobs", json.dumps(body).replace("Infinity", "1e999").encode())) == {
        "/spec/training/steps": "greater_than_equal",
        "/spec/training/nonsense": "extra_forbidden",
        "/spec/rollout/replicas": "int_parsing",
        "/spec/rollout/temperature": "finite_number",
        "/spec/environment/params/BAD": "string_pattern_mismatch",
        "/spec/environment/params/a": "bool_type",
        "/spec/tags/1": "too_short",
        "/spec/tags/2": "string_type",
        "/spec/a~1b~0c": "extra_forbidden",
    }
    assert nothing_was_written()


def test_errors_across_parts_of_the_spec_are_reported(api: Any, body: Any) -> None:
    body["spec"] |= {"training": {"steps": 5}, "evaluation": {"every": 6}, "tags": ["a", "a"]}
    assert errors(api.post("/jobs", body)) == {"/spec/evaluation/every": "does_not_fit", "/spec/tags": "does_not_fit"}


def test_setting_without_effect_is_refused_with_alternatives(api: Any, body: Any) -> None:
    body["spec"] |= {"trainer": {"zero_stage": 3}, "resources": {"devices_per_replica": 2}}
    answer = api.post("/jobs", body).json()
    assert {each["pointer"]: each["code"] for each in answer["errors"]} == {
        "/spec/trainer/zero_stage": "no_effect",
        "/spec/resources/devices_per_replica": "no_effect",
    }
    message = answer["errors"][0]["message"]
    assert "Only with the trainer deepspeed." in message and "Got 3; leave it at 2." in message
    assert nothing_was_written()


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"rollout": {"replicas": 8}}, "/spec/rollout/replicas"),
        ({"resources": {"trainer_devices": 9}}, "/spec/resources/trainer_devices"),
    ],
)
def test_job_that_could_never_start_is_refused(api: Any, body: Any, change: Any, pointer: str) -> None:
    body["spec"] |= change
    assert errors(api.post("/jobs", body)) == {pointer: "exceeds_max"}
    assert errors(api.post("/jobs:preview", {"spec": body["spec"]})) == {pointer: "exceeds_max"}
    assert nothing_was_written()


def test_another_teams_project_is_not_found(api: Any, body: Any, other_project: Project) -> None:
    unknown = errors(api.post("/jobs", body | {"project": "proj_" + "0" * 20}), 404)
    assert errors(api.post("/jobs", body | {"project": other_project.pk}), 404) == unknown == {"/project": "not_found"}
    assert nothing_was_written()


def test_preview_shows_presets_and_job_gets_the_same(api: Any, body: Any, team: Team) -> None:
    given_asset(team, "model", "Qwen3-8B", config=KNOWN_CONFIGS["Qwen3-8B"])
    spec = body["spec"] | {"model": {"source": "Qwen3-8B"}, "rollout": {"max_new_tokens": 80}}
    seen = api.post("/jobs:preview", {"spec": spec}).json()
    presets = {each["path"]: each for each in seen["presets"]}
    assert presets["optimizer.learning_rate"]["value"] == seen["spec"]["optimizer"]["learning_rate"] == 1e-6
    assert "rollout.max_new_tokens" not in presets and all(each["reason"] for each in presets.values())
    job = api.post("/jobs", {**body, "spec": spec})
    assert job.status_code == 202 and job.json()["spec"] == seen["spec"]
    small = api.post("/jobs:preview", {"spec": body["spec"] | {"model": {"source": "demo"}}}).json()
    assert small["presets"] == [] and small["spec"]["optimizer"]["learning_rate"] == 3e-4


def test_preview_hints_name_settings_and_refuse_nothing(api: Any, body: Any) -> None:
    rollout = {"replicas": 2, "max_batch": 512, "top_p": 0.9}
    seen = api.post("/jobs:preview", {"spec": body["spec"] | {"rollout": rollout}}).json()
    assert [each["path"] for each in seen["hints"]] == ["rollout.replicas", "rollout.top_p"]
    assert api.post("/jobs:preview", {"spec": body["spec"]}).json()["hints"] == []


def test_preview_submits_nothing_and_predicts_start(api: Any, body: Any, make_job: Any) -> None:
    spec = body["spec"]
    seen = api.post("/jobs:preview", {"spec": spec}).json()
    assert (seen["devices"], seen["trajectories_per_step"]) == (3, 128)
    assert (seen["starts_at_once"], seen["reason"]) == (True, "")
    assert nothing_was_written()
    make_job(devices=7)  # is ahead in the queue
    seen = api.post("/jobs:preview", {"spec": spec}).json()
    assert (seen["starts_at_once"], seen["reason"]) == (False, "team_ceiling")
    assert "3 devices" in seen["message"]


@pytest.mark.parametrize("source", ["/etc", "../../other/checkpoints/step-000010", "models/x", "~root", ".", "a b"])
def test_model_path_is_refused(api: Any, body: Any, source: str) -> None:
    body["spec"]["model"] = {"source": source}
    assert errors(api.post("/jobs", body)) == {"/spec/model/source": "model_unknown"}
    assert errors(api.post("/jobs:preview", {"spec": body["spec"]})) == {"/spec/model/source": "model_unknown"}
    body["spec"] |= {"model": {"source": "demo"}, "algorithm": {"teacher": {"source": source}}}
    assert errors(api.post("/jobs", body)) == {"/spec/algorithm/teacher/source": "model_unknown"}
    assert nothing_was_written()


def test_submission_takes_few_database_trips(api: Any, body: Any) -> None:
    """Caller, rate limit, begin of the transaction, key, destination, rows, answer, commit. Each further trip costs
    some hundred microseconds of two cores, at hundreds of submissions a second."""
    api.post("/jobs", body, key="warm")
    with CaptureQueriesContext(connection) as trips:
        assert api.post("/jobs", body, key="counted").status_code == 202
    assert len(trips) <= 8, [trip["sql"][:80] for trip in trips]
