"""The way of one job, from the REST API to Ray and back, while everything on the way is killed."""

import json
import os
import random
import signal
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.local.processes import belongings
from tests.e2e.blows import Blows
from tests.e2e.conftest import Stack
from tests.e2e.ends import assert_it_ended_once_and_well, assert_nobodys_bill_is_wrong, spec
from tests.waiting import eventually

pytestmark = pytest.mark.e2e

SMALL: dict[str, dict[str, Any]] = {
    "evaluation": {"prompts": 64},
    "training": {"steps": 60, "checkpoint_every": 10, "prompts_per_step": 4},
    "rollout": {"replicas": 1},
}
PER_STEP = ("reward/mean", "train/loss", "train/entropy", "length/mean", "throughput/tokens_per_s", "staleness/mean")


def assert_every_step_is_there_once(series: dict[str, list[tuple[int, float]]], *, steps: int) -> None:
    for name in PER_STEP:
        assert sorted(step for step, _ in series[name]) == list(range(1, steps + 1)), name
    assert [version for version, _ in sorted(series["evaluation/reward"])] == [0, steps]


def checkpoints(stack: Stack, job_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = stack.get(f"/jobs/{job_id}/checkpoints")["data"]
    return rows


def driver_processes(stack: Stack) -> list[psutil.Process]:
    return [process for process in belongings(stack.home, "ray") if "engine.live.run.driver" in command_line(process)]


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it ended since it was listed
        return ""


@pytest.mark.long
def test_killing_each_service_changes_no_result_or_series(stack: Stack) -> None:
    steps = 600  # small ones: together they last longer than five services take to come back
    job = stack.submit(**SMALL | {"training": {**SMALL["training"], "steps": steps, "checkpoint_every": 200}})
    stack.wait(job["id"], lambda job: job["step"] >= 3, within_s=600)
    for service in ("web", "worker", "beat", "valkey", "postgres"):
        stack.kill(service)
    assert stack.get(f"/jobs/{job['id']}")["state"] == "running", "it ended before everything was killed"
    job = stack.finish(job["id"])
    assert job["state"] == "succeeded", job["message"]
    assert job["attempt"] == 1
    series = stack.series(job["id"])
    assert_every_step_is_there_once(series, steps=steps)
    held_out = dict(series["evaluation/reward"])
    assert held_out[steps] - held_out[0] >= 0.25


@pytest.mark.long
def test_freezing_each_service_briefly_does_no_harm(stack: Stack) -> None:
    """SIGSTOP, for shorter than anybody waits; for longer, and everything else that may happen: test_bad_luck."""
    blows = Blows(stack, random.Random(1))
    job = stack.submit(**spec(60))
    stack.wait(job["id"], lambda job: job["step"] >= 1, within_s=600)
    for kind in ("web", "worker", "beat", "valkey", "engine.live.run.driver"):
        blows.stop(kind, lasts_s=2.0)
    blows.calm()
    job = stack.finish(job["id"])
    assert blows.struck.total() == 5 and job["attempt"] == 1
    assert_it_ended_once_and_well(stack, job)


@pytest.mark.proof
def test_killed_driver_is_replaced_from_the_last_checkpoint(stack: Stack, tmp_path: Path) -> None:
    """With questions that were uploaded, which both attempts' nodes have to find."""
    questions = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(1, 30) for b in range(1, 30)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    stack.upload(tmp_path / "sums.jsonl", kind="data", name="sums")
    num_steps = 120  # it must not end before the control plane has received a checkpoint
    job = stack.submit(
        **SMALL | {"training": SMALL["training"] | {"steps": num_steps}},
        environment={"name": "jsonl", "params": {"data": "sums"}},
    )
    assert job["spec"]["environment"]["params"]["data"] == "sums@1"
    stack.wait(job["id"], lambda job: bool(checkpoints(stack, job["id"])), within_s=600)
    drivers = driver_processes(stack)
    assert drivers, "it ended before its driver was killed"
    for process in drivers:
        os.kill(process.pid, signal.SIGKILL)
    job = stack.finish(job["id"])
    assert job["state"] == "succeeded", job["message"]
    assert job["attempt"] == 2
    attempts = stack.get(f"/jobs/{job['id']}/attempts")["data"]
    assert attempts[1]["resume_from"], "the second attempt began from nothing"
    trained = {step for step, _ in stack.series(job["id"])["reward/mean"]}
    assert trained == set(range(1, num_steps + 1))


@pytest.mark.long
def test_a_running_job_is_cancelled_and_leaves_no_actor(stack: Stack) -> None:
    job = stack.submit(rollout={"replicas": 1}, training={"steps": 5_000})
    stack.wait(job["id"], lambda job: job["step"] >= 1, within_s=600)
    assert stack.client.post(f"/api/v1/jobs/{job['id']}/cancel").status_code == 202
    job = stack.finish(job["id"], within_s=300)
    assert job["state"] == "cancelled"
    eventually(lambda: driver_processes(stack), "its driver has ended", until=lambda processes: not processes)
    assert stack.get("/pools")["data"][0]["reserved"] == 0


@pytest.mark.soak  # tests/backend/jobs/queue proves it without a job that runs
def test_job_over_quota_waits_with_reason_and_cancels_at_once(stack: Stack) -> None:
    large = {"rollout": {"replicas": 4, "max_batch": 4}, "training": {"steps": 5_000}}
    first, second = stack.submit(**large), stack.submit(**large)
    second = stack.wait(second["id"], lambda job: job["reason"] != "not_evaluated_yet", within_s=300)
    assert (second["state"], second["reason"]) == ("queued", "team_ceiling")
    for job in (second, first):
        assert stack.client.post(f"/api/v1/jobs/{job['id']}/cancel").status_code == 202
        assert stack.finish(job["id"], within_s=300)["state"] == "cancelled"


@pytest.mark.soak  # tests/backend/jobs/queue/test_races.py has it raced sixteen times
def test_the_same_request_twice_is_one_job(stack: Stack) -> None:
    key = str(uuid.uuid4())
    body = {"project": stack.project, "spec": {"name": "twice", "training": {"steps": 1}, "evaluation": {"prompts": 1}}}
    answers = [
        stack.client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": key}).json()["id"] for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert stack.client.post(f"/api/v1/jobs/{answers[0]}/cancel").status_code == 202
    stack.finish(answers[0], within_s=300)


@pytest.mark.long
def test_evaluation_holds_one_replica_and_reports_progress(stack: Stack) -> None:
    prompts = 3_000  # a few seconds: longer than several looks
    trained = stack.finish(stack.submit(**SMALL | {"training": {**SMALL["training"], "steps": 2}})["id"])
    assert trained["progress"] == {"done": 2, "total": 2, "unit": "steps"}
    [checkpoint] = checkpoints(stack, trained["id"])
    answer = stack.client.post(f"/api/v1/checkpoints/{checkpoint['id']}/evaluate", json={"prompts": prompts})
    assert answer.status_code == 202, answer.text
    job = stack.wait(answer.json()["id"], lambda job: 0 < job["progress"]["done"] < prompts, within_s=600)
    assert stack.get("/pools")["data"][0]["reserved"] == 1
    done = job["progress"]["done"]
    job = stack.wait(job["id"], lambda job: job["progress"]["done"] > done, within_s=300)
    job = stack.finish(job["id"])
    assert job["state"] == "succeeded", job["message"]
    assert (job["progress"], job["devices"]) == ({"done": prompts, "total": prompts, "unit": "prompts"}, 1)
    [evaluation] = stack.get(f"/checkpoints/{checkpoint['id']}")["evaluations"]
    assert evaluation["job"] == job["id"] and evaluation["prompts"] <= prompts


@pytest.mark.proof
def test_in_the_end_nobodys_bill_is_wrong(stack: Stack) -> None:
    """Of all the jobs above, killed and cancelled ones too."""
    assert_nobodys_bill_is_wrong(stack, database=stack.database, settled_within_s=0)
