"""A new user's first five minutes on the command line: the steps in the client's README."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import transaction

from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from tests.frontend.client.conftest import Shell, checkpoint_of
from tests.frontend.conftest import Server
from tests.frontend.seed import World, ended, evaluated, trained
from tests.waiting import eventually

STEPS = 3


def start(world: World, job_id: str) -> Job:
    """Acts as scheduler and engine, through an engine's facts."""
    assert schedule_pool(world.pool.pk, now=datetime.now(UTC)) == 1
    with transaction.atomic():
        job = locked_job(job_id)
        change_state(job, JobState.RUNNING, actor="engine:1", now=datetime.now(UTC), phase="training")
    return job


def has_done(laminar: Shell, job_id: str, step: int) -> bool:
    return bool(laminar.json("show", job_id)["step"] == step)


@pytest.mark.long
def test_first_five_minutes(newcomer: Shell, server: Server, world: World, key: str) -> None:
    laminar = newcomer

    # 0:00 log in: the key comes from standard input and is never printed
    assert "ada@example.org" in laminar("login", "--url", server.url, "--key-stdin", input=key).stdout
    assert "jobs:write" in laminar("whoami").stdout
    assert "First steps" in laminar("projects").stdout

    # 0:30 preview a template
    assert "running_sums" in laminar("templates").stdout
    small = ["--template", "running_sums", "--set", f"training.steps={STEPS}", "--set", "training.checkpoint_every=3"]
    assert "would start now" in laminar("preview", *small).stdout

    # 1:00 submit it, and watch
    submitted = laminar("submit", *small, "--name", "My first")
    job_id = submitted.stdout.strip()
    assert f"{server.url}/jobs/{job_id}/" in submitted.stderr
    watching = laminar.start("watch", job_id, "--interval", "0.2")
    job = start(world, job_id)

    # 2:30 a second job waits, with a reason
    second = laminar("submit", *small, "--name", "My second").stdout.strip()
    schedule_pool(world.pool.pk, now=datetime.now(UTC))
    why = laminar("explain", second).stdout
    assert "is queued" in why
    assert "queue position: 1" in why
    assert second in laminar("queue").stdout
    assert "is cancelled" in laminar("cancel", second).stdout

    # 3:30 the first job trains and ends
    evaluated(job, version=0, reward=0.25, at=datetime.now(UTC))
    for step in range(1, STEPS + 1):
        trained(world, job, step)
        eventually(partial(has_done, laminar, job_id, step), f"step {step} is shown")
    checkpoint = checkpoint_of(job, step=STEPS)
    ended(job, JobState.SUCCEEDED, at=datetime.now(UTC) + timedelta(seconds=2), message="All steps are done.")
    told, complaints = watching.communicate(timeout=30)
    assert watching.returncode == 0, complaints
    assert f"step {STEPS}/{STEPS}" in told
    assert "reward" in told
    assert told.rstrip().endswith("succeeded: All steps are done.")

    # 4:30 checkpoints and usage
    assert checkpoint.pk in laminar("checkpoints", job_id).stdout
    assert laminar.json("usage", job_id)["total"]["held"] > 0
    assert "useful" in laminar("usage").stdout
