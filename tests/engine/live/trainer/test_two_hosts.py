"""A trainer and relays on two hosts: each trainer host sends its own bytes, and the relays of both get the version.

The hosts are two nodes of one Ray on this machine. Only the shared memory of their processes is separate: a folder on
another file system counts as another host's.
"""

import faulthandler
import multiprocessing
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from engine.live.body.actor import CONCURRENCY_GROUPS
from engine.live.relay.actor import RelayActor
from engine.live.weights import segments
from engine.pipeline.messages.addresses import TRAINER, relay_address, rollout_address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_relay import WeightsWanted
from engine.pipeline.messages.to_rollout import WeightsServed
from engine.policy.lineage import NO_WEIGHTS
from engine.spec.job import JobSpec
from infra.suite.speed import scale
from tests.bench.engine.relays.travel import LoopbackLinks
from tests.engine.live.trainer.test_shares import FIRST, SECOND, TrainingHosts, on_a_host_of_its_own, whole_version
from tests.waiting import GIVES_UP_AFTER_S, eventually

# More than all waits below together, each of which fails with its own reason, and less than the limit of a long test.
HANGS_AFTER_S: Final = 8 * GIVES_UP_AFTER_S
REPEATS_EVERY_S: Final = 1.0
ROOT = Path(__file__).resolve().parents[4]
SPEC = JobSpec.model_validate({"name": "two hosts", "rollout": {"replicas": 2}})


class RelayInFolder(RelayActor):
    def __init__(self, *, folder: Path, **arguments: Any) -> None:
        on_a_host_of_its_own(folder, None)
        super().__init__(**arguments)


class Listening:
    """Replaces the trainer or a replica among a relay's peers, and collects messages."""

    def __init__(self) -> None:
        self._received: list[Message] = []

    def deliver(self, message: Message) -> None:
        self._received.append(message)

    def received(self) -> list[Message]:
        return self._received


def publish_from_two_hosts(folders: tuple[Path, Path]) -> None:
    """Runs in a process of its own, with a Ray of its own."""
    os.environ |= {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.pop("RAY_ADDRESS", None)
    faulthandler.dump_traceback_later(HANGS_AFTER_S * scale(), exit=True)
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"host-0": 1.0}})
    cluster.add_node(num_cpus=1, resources={"host-1": 1.0})
    try:
        ray.init(address=cluster.address)
        _publish(ray, folders)
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


def _publish(ray: Any, folders: tuple[Path, Path]) -> None:
    links, expected = LoopbackLinks(), whole_version()
    on = [{"num_cpus": 0, "resources": {f"host-{host}": 0.1}} for host in (0, 1)]
    second = partial(on_a_host_of_its_own, folders[1])
    trainer = ray.remote(TrainingHosts).options(**on[0]).remote(links, second, {"host-1": 0.1})
    relays = [
        ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(RelayInFolder)
        .options(**on[host])
        .remote(folder=folders[host], spec=SPEC, host=host, hosts=(0, 1), incarnation=0, links=links)
        for host in (0, 1)
    ]
    replicas = [ray.remote(num_cpus=0)(Listening).remote() for _ in relays]
    peers = {TRAINER: ray.remote(num_cpus=0)(Listening).remote()}
    for host, relay in enumerate(relays):
        of_host = {rollout_address(host): replicas[host], relay_address(1 - host): relays[1 - host]}
        relay.connect.remote({**peers, **of_host})
    sizes = ray.get(trainer.publish.remote(FIRST))
    assert len(sizes) == 2 and sum(sizes) == len(expected), "each host has only its part"
    eventually(lambda: ray.get(relays[0].view.remote()), "the first relay leads", until=lambda view: view.leads)
    offer = ray.get(trainer.offer.remote(FIRST))
    for host, relay in enumerate(relays):

        def visible(relay: Any = relay) -> Any:
            relays[0].deliver.remote(offer)  # repeated as by a trainer: a pull that timed out is refused
            return ray.get(relay.view.remote()).visible

        has_it = f"relay {host} has the version"
        eventually(visible, has_it, until=lambda versions: FIRST in versions, every_s=REPEATS_EVERY_S)
        relay.deliver.remote(WeightsWanted(replica=host, incarnation=0, held=NO_WEIGHTS, exact=None))

        def served(host: int = host) -> list[WeightsServed]:
            return [each for each in ray.get(replicas[host].received.remote()) if isinstance(each, WeightsServed)]

        payload: Any = eventually(served, f"relay {host} serves its replica")[0].payload
        assert (folders[host] / payload.name).read_bytes() == expected
    assert ray.get(relays[1].view.remote()).num_bytes == len(expected), "not through the chain"
    ray.get(trainer.publish.remote(SECOND))
    ray.get(trainer.close.remote())


@pytest.mark.long
@pytest.mark.ray
def test_relays_get_the_version_from_both_trainer_hosts(tmp_path: Path) -> None:
    assert tmp_path.stat().st_dev != segments.FOLDER.stat().st_dev, "the test needs a second file system"
    process = multiprocessing.get_context("spawn").Process(
        target=publish_from_two_hosts, args=((segments.FOLDER, tmp_path),)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
