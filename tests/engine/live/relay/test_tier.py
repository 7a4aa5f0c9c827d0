"""Four relays in four processes, killed, frozen and lied to."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.bench.relay_publisher import PublisherActor
from engine.live.body.actor import CONCURRENCY_GROUPS
from engine.live.process.links import Links
from engine.live.relay.actor import RelayActor
from engine.live.relay.view import RelayView
from engine.live.weights.offered_bytes import map_version
from engine.live.weights.segments import FOLDER, PREFIX, sweep
from engine.pipeline.messages.addresses import TRAINER, relay_address, rollout_address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_relay import WeightsWanted
from engine.pipeline.messages.to_rollout import WeightsServed
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.relay_chain import chain_order, chunk_bytes_for
from engine.spec.job import JobSpec
from engine.weights.hashes import verify_weights

pytestmark = pytest.mark.ray

NUM_RELAYS = 4
NUM_BYTES = 64 * 2**20
WHOLE_CHUNKS = -(-NUM_BYTES // chunk_bytes_for(NUM_BYTES, NUM_RELAYS))
LOOK_EVERY_S = 0.01  # looking costs the relays the time in which they would get on
WITHIN_S = 60.0  # a busy machine; what is promised is shown by the simulation, where time is exact


class LoopbackLinks(Links):
    def address(self) -> str:
        return "127.0.0.1"


class ReplicaActor:
    """Takes what it is served."""

    def __init__(self) -> None:
        self._served: list[Message] = []

    def deliver(self, message: Message) -> None:
        self._served.append(message)

    def served(self) -> list[Message]:
        return self._served


class Tier:
    """Every test leaves it with all relays alive."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._make_remote = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups=CONCURRENCY_GROUPS)
        self.links = LoopbackLinks()
        self._spec = JobSpec.model_validate({"name": "relays", "rollout": {"replicas": NUM_RELAYS}})
        self._publisher = self._make_remote(PublisherActor).remote(spec=self._spec, links=self.links)
        self._publisher.resize.remote(NUM_BYTES)
        self._incarnations = dict.fromkeys(range(NUM_RELAYS), 0)
        self._relays: dict[int, Any] = {}
        self.dead: set[int] = set()
        for host in range(NUM_RELAYS):
            self._start(host)
        self._introduce()

    def end(self) -> None:
        for actor in (self._publisher, *self._relays.values()):
            self._ray.kill(actor, no_restart=True)

    def restart(self, host: int) -> None:
        self._incarnations[host] += 1
        self._start(host)
        self._introduce()
        self.dead.discard(host)

    def kill(self, host: int) -> None:
        os.kill(self.view(host).pid, signal.SIGKILL)
        self.dead.add(host)

    def publish(self) -> WeightsId:
        version: WeightsId = self._ray.get(self._publisher.publish.remote(), timeout=WITHIN_S)
        return version

    @property
    def stored(self) -> WeightsId:
        version: WeightsId = self._ray.get(self._publisher.stored.remote(), timeout=WITHIN_S)
        return version

    def view(self, host: int) -> RelayView:
        view: RelayView = self._ray.get(self._relays[host].view.remote(), timeout=WITHIN_S)
        return view

    def everyone_has(self, version: WeightsId, *, but: int | None = None) -> bool:
        return all(version in self.view(host).visible for host in self.live if host != but)

    @property
    def live(self) -> list[int]:
        return [host for host in range(NUM_RELAYS) if host not in self.dead]

    def chain(self) -> tuple[int, ...]:
        """As it is once everybody agrees."""
        wait_until(lambda: len({self.view(host).claim for host in self.live}) == 1)
        return chain_order(self.live, self.view(self.live[0]).claim)

    def settle(self) -> tuple[int, ...]:
        """A version reaches everybody, so that everybody has heard of the neighbours."""
        version = self.publish()
        wait_until(lambda: self.everyone_has(version) and self.stored == version)
        return self.chain()

    def serve_replicas(self) -> list[WeightsServed]:
        replica = self._make_remote(ReplicaActor).remote()
        for host in self.live:
            self._relays[host].connect.remote({rollout_address(host): replica})
            self._relays[host].deliver.remote(WeightsWanted(replica=host, incarnation=0, held=NO_WEIGHTS, exact=None))
        wait_until(lambda: len(self._ray.get(replica.served.remote())) == len(self.live))
        served: list[WeightsServed] = self._ray.get(replica.served.remote())
        self._ray.kill(replica, no_restart=True)
        return served

    def _start(self, host: int) -> None:
        self._relays[host] = self._make_remote(RelayActor).remote(
            spec=self._spec, host=host, hosts=range(NUM_RELAYS), incarnation=self._incarnations[host], links=self.links
        )

    def _introduce(self) -> None:
        peers = {relay_address(host): relay for host, relay in self._relays.items()}
        self._publisher.connect.remote(peers)
        for relay in self._relays.values():
            relay.connect.remote({**peers, TRAINER: self._publisher})


def wait_until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < give_up_at, "not within the time allowed"
        time.sleep(LOOK_EVERY_S)


@pytest.fixture(scope="module")
def tier(own_ray: str) -> Iterator[Tier]:
    import ray

    tier = Tier(ray)
    yield tier
    tier.end()
    wait_until(lambda: not sweep() and not list(FOLDER.glob(f"{PREFIX}{tier.links.run}-*")))


def test_a_version_reaches_all_and_replicas_map_it_whole(tier: Tier) -> None:
    last = tier.settle()[-1]
    num_chunks = tier.view(last).num_chunks
    changed = tier.publish()
    wait_until(lambda: tier.everyone_has(changed))
    assert tier.view(last).num_chunks == num_chunks + 1, "the second time only what changed, in one chunk"
    assert [tier.view(host).num_useless_chunks for host in tier.live] == [0] * NUM_RELAYS
    served = [map_version(message.manifest, message.payload) for message in tier.serve_replicas()]
    for weights in served:
        verify_weights(weights)
        assert weights.buffer.readonly and weights.manifest.weights == changed
    assert len({weights.manifest.identity for weights in served}) == 1


def test_a_frozen_relay_stops_nobody_and_catches_up(tier: Tier) -> None:
    master, second, *_ = tier.settle()
    frozen = tier.view(second).pid
    os.kill(frozen, signal.SIGSTOP)
    try:
        newest = tier.publish()
        wait_until(lambda: tier.everyone_has(newest, but=second))
    finally:
        os.kill(frozen, signal.SIGCONT)
    wait_until(lambda: tier.everyone_has(newest))
    assert tier.view(master).leads


def test_a_relay_killed_in_a_broadcast_is_skipped_and_no_chunk_is_delivered_twice(tier: Tier) -> None:
    _, second, third, last = tier.settle()
    version, doomed = max(tier.view(third).visible), tier.view(second).pid
    for host in (third, last):  # they have nothing any more: the whole travels to them, through the second
        tier.kill(host)
        tier.restart(host)
    wait_until(lambda: tier.view(third).num_chunks > 0)
    os.kill(doomed, signal.SIGKILL)
    tier.dead.add(second)
    wait_until(lambda: tier.everyone_has(version))
    views = [tier.view(host) for host in (third, last)]
    assert [view.num_useless_chunks for view in views] == [0, 0]
    assert views[0].num_chunks == views[1].num_chunks == WHOLE_CHUNKS
    tier.restart(second)
    tier.settle()


def test_a_killed_master_is_replaced_and_what_it_took_with_it_is_published_again(tier: Tier) -> None:
    master, second, *others = tier.settle()
    newest = tier.publish()
    tier.kill(master)  # it may or may not have begun
    wait_until(lambda: tier.everyone_has(newest) and tier.stored == newest)
    assert tier.chain() == (second, *others) and tier.view(second).leads
    tier.restart(master)
    assert tier.settle()[0] == second, "who comes back follows"
