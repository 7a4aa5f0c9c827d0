"""Two kinds of hosts in one real Ray, as pools see them: labels, selectors, drivers, and GPUs that a pool of CPUs
leaves alone. Its GPUs are numbers only."""

import json
import logging
import multiprocessing
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.local.ports import free_port
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
WITHIN_S = 240.0
SELECTORS: list[dict[str, str]] = [
    *({"kind": "gpu"}, {"kind": "cpu"}, {"kind": "!gpu"}, {"kind": "in(tpu, gpu)"}, {"kind": "!in(tpu, gpu)"}),
    *({"size": "big"}, {"size": "!big"}, {"kind": "gpu", "size": "!big"}, {"kind": "none"}, {"none": "!none"}),
]
PRINTS_ITS_GPUS = (
    f"'{sys.executable}' "
    + """-c "import json, os, ray
ray.init(address='auto', logging_level='ERROR')
def seen(): return os.environ.get('CUDA_VISIBLE_DEVICES')
print('gpus', json.dumps([seen(), ray.get(ray.remote(num_cpus=0.1)(seen).remote())]))" """
)


def with_two_kinds_of_hosts() -> None:
    """In a process of its own: this Ray is not that of other tests."""
    token = secrets.token_hex(32)
    os.environ |= {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    os.environ.pop("RAY_ADDRESS", None)
    import ray
    from ray.cluster_utils import Cluster

    port, *agents = (free_port() for _ in range(3))  # two hosts' agents on one machine: one would have no port
    head = {"num_cpus": 2, "labels": {"kind": "cpu"}, "include_dashboard": True, "dashboard_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head | {"dashboard_agent_listen_port": agents[0]})
    try:
        cluster.add_node(
            num_cpus=2, num_gpus=2, labels={"kind": "gpu", "size": "big"}, dashboard_agent_listen_port=agents[1]
        )
        ray.init(address=cluster.address, logging_level=logging.ERROR)
        selectors_choose_what_ray_chooses()
        pools_are_kept_apart()
        drivers_are_where_their_pools_are(f"http://127.0.0.1:{port}", token)
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


def selectors_choose_what_ray_chooses() -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    from engine.live.process.hosts import read_hosts
    from engine.spec.control import PoolTerms

    for selector in (PoolTerms(labels=each).labels for each in SELECTORS):
        ours = {host.id for host in read_hosts(selector)}
        group: Any = placement_group([{"CPU": 0.1}], bundle_label_selector=[selector])
        placed = group.wait(20 if ours else 2)
        assert placed == bool(ours), selector
        if placed:
            (node,) = ray.util.placement_group_table(group)["bundles_to_node_id"].values()
            assert node in ours, selector
        remove_placement_group(group)


def pools_are_kept_apart() -> None:
    import ray

    from engine.live.process.hosts import read_hosts
    from engine.live.run.placement import place
    from engine.spec.control import PoolTerms
    from engine.spec.job import JobSpec

    (gpu_host,) = read_hosts({"kind": "gpu"})
    small = JobSpec.model_validate({"name": "x", "rollout": {"replicas": 1}})

    def placed(**terms: Any) -> tuple[set[str], float]:
        placement = place(small, PoolTerms(**terms), check=lambda: None)
        hosts = {bundle.host for bundle in placement.bundles}
        ray.util.remove_placement_group(placement.group)
        return hosts, sum(bundle.resources.get("GPU", 0.0) for bundle in placement.bundles)

    assert placed(labels={"kind": "gpu"}, device="gpu") == ({gpu_host.id}, 2.0)
    assert placed(labels={"kind": "gpu"}, device="cpu") == ({gpu_host.id}, 0.0)
    hosts, gpus = placed(labels={"kind": "!gpu"}, device="cpu")
    assert gpu_host.id not in hosts and gpus == 0
    out = {"ray.io/node-id": f"!in({gpu_host.id})"}
    hosts, gpus = placed(labels=out, device="cpu")
    assert gpu_host.id not in hosts, "a host that is being taken out"
    assert placed()[1] == 2.0, "a pool that sets no device takes GPUs, as before"


def drivers_are_where_their_pools_are(url: str, token: str) -> None:
    import django

    django.setup()
    from backend.jobs.attempts.launcher import RayLauncher, SubmissionStatus
    from backend.pools.clusters.dashboard import RayUnreachable
    from engine.live.process.hosts import read_hosts
    from engine.spec.control import AttemptOrder, PoolTerms
    from engine.spec.job import JobSpec

    launcher = RayLauncher(url, token, entrypoint=PRINTS_ITS_GPUS)
    hosts = {host.id: host for host in launcher.hosts()}
    ours = {host.id: host for host in read_hosts({})}
    assert {id: (host.cpus, host.gpus) for id, host in hosts.items()} == {
        id: (host.cpus, host.gpus) for id, host in ours.items()
    }
    (big,) = [host for host in hosts.values() if host.labels.get("size") == "big"]
    order = AttemptOrder(
        job="job_x", attempt=1, fence=1, spec=JobSpec(name="x"), control_url="http://127.0.0.1:1", token="t",
        pool=PoolTerms(labels={"size": "big"}, device="cpu"),
    )  # fmt: skip
    # As the reconciler does: retried under the same id. A head returns 500 until its own agent is there.
    eventually(
        lambda: launcher.launch(order, "job_x-1-1"),
        "Ray's head takes the job",
        until=lambda _: True,
        ignoring=(RayUnreachable,),
        within_s=300,
        every_s=0.5,
    )
    status = eventually(
        lambda: launcher.status("job_x-1-1"), "the job ends", until=lambda status: not status.is_live, within_s=300
    )
    log = launcher.log_tail("job_x-1-1", 4_000)
    assert status is SubmissionStatus.SUCCEEDED, log
    driver_sees, actor_sees = json.loads(log.partition("gpus ")[2].splitlines()[0])
    assert (driver_sees, actor_sees) == ("", ""), "the driver and what it starts"
    about = launcher._ask("GET", "/api/jobs/job_x-1-1").json()
    assert about["driver_node_id"] == big.id


@pytest.mark.long
@pytest.mark.ray
def test_pools_of_one_ray_are_kept_apart() -> None:
    process = multiprocessing.get_context("spawn").Process(target=with_two_kinds_of_hosts)
    process.start()
    process.join(WITHIN_S)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0
