"""Requests to Ray: one bundle for each part on its planned host, accelerators only for parts that use them."""

from typing import Any

import pytest

from engine.live.run.placement import Bundle, Placement, refuse_offload, reserved, takes_gpus, wanted
from engine.pipeline.messages.addresses import DATA, TRAINER, environment_address
from engine.policy.placement import SERVICE_CPUS, JobNeeds, NoRoom, plan_places
from engine.policy.rooms import HostView
from engine.spec.control import PoolTerms
from engine.spec.environments.sandbox import SANDBOX_LABEL
from engine.spec.job import JobSpec


def spec(*, steps: int, **changes: Any) -> JobSpec:
    settings = {"replicas": 3}
    return JobSpec.model_validate({"name": "x", "training": {"steps": steps}, "rollout": settings} | changes)


def bundles(job: JobSpec, *, has_gpus: bool, hosts: int = 3) -> tuple[Bundle, ...]:
    gpus = 4.0 if has_gpus else 0.0
    cluster = [
        HostView(id=f"{number}", name=f"{number}", cpus=8.0, gpus=gpus, free_cpus=8.0, free_gpus=gpus)
        for number in range(hosts)
    ]
    needs = JobNeeds.of_spec(job, has_gpus=has_gpus)
    return reserved(plan_places(cluster, needs, num_replicas=job.rollout.replicas), needs)


def test_job_gets_as_many_accelerators_as_it_reserves() -> None:
    for steps in (0, 9):
        for backend, devices in (("torch", 1), ("torch", 4), ("deepspeed", 1), ("deepspeed", 4)):
            job = spec(steps=steps, resources={"trainer_devices": devices}, trainer={"backend": backend})
            each = [bundle.resources.get("GPU", 0.0) for bundle in bundles(job, has_gpus=True)]
            assert sum(each) == job.num_devices and max(each) == 1, job


def test_cpu_pool_requests_no_gpu_and_gpu_pool_requires_one() -> None:
    mixed = [HostView(id=f"{gpus}", name="", cpus=8, gpus=gpus, free_cpus=8, free_gpus=gpus) for gpus in (0.0, 4.0)]
    without = mixed[:1]
    for device, here, elsewhere in (("cpu", False, False), ("gpu", True, True), (None, True, False)):
        pool = PoolTerms.model_validate({"device": device})
        assert (takes_gpus(pool, mixed), takes_gpus(pool, without)) == (here, elsewhere)
    with pytest.raises(NoRoom, match="1 GPU and"):
        plan_places(without, JobNeeds.of_spec(spec(steps=9), has_gpus=True), num_replicas=3)


def test_request_for_hosts_covers_any_plan() -> None:
    for evaluates in (0, 9):
        job = spec(steps=evaluates, environment={"workers": 3}, resources={"trainer_devices": 2})
        for has_gpus in (True, False):
            needed = bundles(job, has_gpus=has_gpus)
            request = wanted(JobNeeds.of_spec(job, has_gpus=has_gpus))
            for kind in ("CPU", "GPU"):
                sums = [sum(each.get(kind, 0.0) for each in side) for side in ([b.resources for b in needed], request)]
                assert sums[0] <= sums[1] + 1e-9, (kind, sums)
                assert kind == "CPU" or sums[0] == sums[1]


def test_evaluation_weights_need_one_process_and_no_accelerator() -> None:
    job = spec(steps=0, resources={"trainer_devices": 4}, trainer={"backend": "deepspeed"})
    for has_gpus in (True, False):
        trainer = [bundle for bundle in bundles(job, has_gpus=has_gpus) if bundle.part == TRAINER]
        assert [bundle.resources for bundle in trainer] == [{"CPU": SERVICE_CPUS}]


def test_device_without_accelerators_is_a_fraction_of_a_core() -> None:
    evaluates, trains = (bundles(spec(steps=steps), has_gpus=False) for steps in (0, 9))
    assert all("GPU" not in bundle.resources for bundle in (*evaluates, *trains))
    cores = [sum(bundle.resources["CPU"] for bundle in each) for each in (evaluates, trains)]
    assert cores[0] < cores[1]


def test_each_replica_and_each_hosts_relay_has_a_bundle() -> None:
    placed = bundles(spec(steps=9, rollout={"replicas": 8}, resources={"trainer_devices": 4}), has_gpus=True)
    kinds = [bundle.part.kind for bundle in placed]
    assert [kinds.count(kind) for kind in ("trainer", "rollout", "relay", "data")] == [4, 8, 2, 1]
    on = {kind: {bundle.host for bundle in placed if bundle.part.kind == kind} for kind in set(kinds)}
    assert on["relay"] == on["rollout"] and len(on["trainer"]) == 1
    assert next(bundle for bundle in placed if bundle.part == DATA).resources == {"CPU": 2 * SERVICE_CPUS}


def test_elastic_replicas_are_not_reserved() -> None:
    job = spec(steps=9, placement={"min_replicas": 1})
    assert sum(bundle.part.kind == "rollout" for bundle in bundles(job, has_gpus=True)) == 1


def test_offload_in_a_pool_without_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^optimizer\.offload has no effect .* leave it at False\.$"):
        refuse_offload(spec(steps=9, optimizer={"offload": True}))
    refuse_offload(spec(steps=9))
    refuse_offload(spec(steps=0, optimizer={"offload": True}))  # an evaluation has no optimizer


def test_environment_workers_rotate_over_rollout_hosts() -> None:
    job = spec(steps=9, rollout={"replicas": 8}, environment={"workers": 5})
    placed = bundles(job, has_gpus=True)
    relays = [bundle.host for bundle in placed if bundle.part.kind == "relay"]
    workers = {bundle.part: bundle.host for bundle in placed if bundle.part.kind == "environment"}
    assert list(workers) == [environment_address(worker) for worker in range(1, 5)], "the first is in data's bundle"
    assert len(relays) == 2 and sorted(workers.values()) == sorted(relays * 2)


@pytest.mark.parametrize(("name", "label"), [("reasoning_gym", {SANDBOX_LABEL: "!none"}), ("running_sums", {})])
def test_worker_of_a_lost_host_moves_to_a_host_with_a_sandbox(
    name: str, label: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = spec(steps=9, environment={"name": name, "workers": 2})
    host = HostView(id="gone", name="gone", cpus=8.0, free_cpus=8.0)
    needs = JobNeeds.of_spec(job, has_gpus=False)
    places = plan_places([host], needs, num_replicas=3)
    pool = PoolTerms.model_validate({"labels": {"zone": "a"}})
    group: Any = None
    placement = Placement(
        group=group, bundles=reserved(places, needs), needs=needs, places=places, hosts=(host,), pool=pool
    )
    monkeypatch.setattr("engine.live.run.placement.read_hosts", lambda _: ())
    assert placement.options(environment_address(1))["label_selector"] == {"zone": "a"} | label
