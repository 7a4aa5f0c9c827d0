"""What Ray is asked for: one bundle a part, accelerators only for what computes on them."""

from typing import Any

import pytest

from engine.live.run.placement import (
    FIRST_HOST_BUNDLE,
    SERVICE_BUNDLE,
    SERVICE_CPUS,
    TRAINER_BUNDLE,
    bundle_of,
    bundles,
    num_ranks,
    refuse_what_needs_gpus,
    resources_of,
)
from engine.pipeline.messages.addresses import TRAINER, environment_address
from engine.spec.job import JobSpec


def spec(*, steps: int, **changes: Any) -> JobSpec:
    settings = {"replicas": 3, "relays": 2}
    return JobSpec.model_validate({"name": "x", "training": {"steps": steps}, "rollout": settings} | changes)


def num_gpus(asked: JobSpec) -> float:
    return sum(bundle.get("GPU", 0.0) for bundle in bundles(asked, has_gpus=True))


def test_a_job_is_given_as_many_accelerators_as_it_reserves() -> None:
    for steps in (0, 9):
        for backend, devices in (("torch", 1), ("torch", 4), ("deepspeed", 1), ("deepspeed", 4)):
            asked = spec(steps=steps, resources={"trainer_devices": devices}, trainer={"backend": backend})
            assert num_gpus(asked) == asked.num_devices, asked


def test_what_holds_an_evaluations_weights_is_one_process_without_an_accelerator() -> None:
    asked = spec(steps=0, resources={"trainer_devices": 4}, trainer={"backend": "deepspeed"})
    assert num_ranks(asked) == 1 and bundles(asked, has_gpus=True)[TRAINER_BUNDLE] == {"CPU": SERVICE_CPUS}
    for has_gpus in (True, False):
        assert resources_of(TRAINER, asked, has_gpus=has_gpus) == {"CPU": SERVICE_CPUS}


def test_workers_of_the_environment_are_dealt_over_the_hosts_of_the_rollouts() -> None:
    asked, one = spec(steps=9, environment={"workers": 6}), spec(steps=9)
    workers = [bundle_of(environment_address(worker), asked) for worker in range(6)]
    assert workers == [SERVICE_BUNDLE, *[FIRST_HOST_BUNDLE, FIRST_HOST_BUNDLE + 1] * 2, FIRST_HOST_BUNDLE]
    for has_gpus in (True, False):
        more = zip(bundles(asked, has_gpus=has_gpus), bundles(one, has_gpus=has_gpus), strict=True)
        added = [many["CPU"] - few["CPU"] for many, few in more]
        counted = [workers[1:].count(bundle) * SERVICE_CPUS for bundle in range(len(added))]
        assert added == pytest.approx(counted)


def test_without_accelerators_every_device_is_a_part_of_a_core() -> None:
    evaluates, trains = spec(steps=0), spec(steps=9)
    assert all("GPU" not in bundle for each in (evaluates, trains) for bundle in bundles(each, has_gpus=False))
    cores = [sum(bundle["CPU"] for bundle in bundles(each, has_gpus=False)) for each in (evaluates, trains)]
    assert cores[0] < cores[1]


def test_moments_are_not_moved_to_the_hosts_memory_where_they_are_in_it_already() -> None:
    with pytest.raises(ValueError, match=r"^optimizer\.offload has no effect .* leave it at False\.$"):
        refuse_what_needs_gpus(spec(steps=9, optimizer={"offload": True}))
    refuse_what_needs_gpus(spec(steps=9))
    refuse_what_needs_gpus(spec(steps=0, optimizer={"offload": True}))  # of a job that trained
