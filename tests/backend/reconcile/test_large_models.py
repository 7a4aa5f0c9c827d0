"""The time that a job's size adds to the deadlines of its start and pause, for a known model and devices."""

import pytest

from backend.jobs.control.pausing import pause_job
from backend.jobs.models import Job
from backend.pools.models import ResourcePool
from backend.reconcile.judging import PAUSE_DEADLINE_S, START_DEADLINE_S
from engine.fit.durations.limits import longest_pause_s, longest_start_s
from engine.fit.known_models import known_shape
from engine.spec.job import JobSpec
from tests.backend.reconcile.conftest import S, World

LARGE = "Qwen3-1.7B"


@pytest.fixture
def large(world: World) -> World:
    world.with_spec(model={"source": LARGE})
    ResourcePool.objects.filter(pk=world.job.pool_id).update(device_gb=80)
    return world


def spec_of(job: Job) -> JobSpec:
    return JobSpec.accepted(job.spec)


def test_start_deadline_grows_with_model_size(large: World) -> None:
    large.launch()
    large.ray_says(S.RUNNING)
    adds_s = longest_start_s(spec_of(large.job), known_shape(LARGE))
    assert adds_s > START_DEADLINE_S
    large.later(START_DEADLINE_S + adds_s - 1)
    assert large.ray.stopped == []
    large.later(2)
    assert large.ray.stopped == [large.attempt.submission_id]


def test_pause_deadline_grows_with_model_size(large: World) -> None:
    large.run()
    pause_job(large.job.pk, actor="user:1", now=large.now)
    large.ray_says(S.RUNNING)
    adds_s = longest_pause_s(spec_of(large.job), known_shape(LARGE))
    assert adds_s > PAUSE_DEADLINE_S
    large.later(PAUSE_DEADLINE_S + adds_s - 1)
    assert large.ray.stopped == [] and large.state() == ("pausing", 1)
    large.later(2)
    assert large.ray.stopped == [large.attempt.submission_id]


@pytest.mark.parametrize("unknown", ["device", "model", "spec"])
def test_deadline_is_the_minimum_if_anything_is_unknown(large: World, unknown: str) -> None:
    if unknown == "device":
        ResourcePool.objects.filter(pk=large.job.pool_id).update(device_gb=None)
    large.launch()  # by a release that accepted it
    if unknown != "device":
        large.with_spec(**{"model": {"source": "nobody-s"}} if unknown == "model" else {"trainer": {"backend": "?"}})
    large.ray_says(S.RUNNING)
    large.later(START_DEADLINE_S + 1)
    assert large.ray.stopped == [large.attempt.submission_id]
