"""Relays in processes of their own, fed by a publisher in the trainer's place."""

import os
import signal
from typing import Any, Final

from engine.live.body.actor import CONCURRENCY_GROUPS
from engine.live.process.links import Links
from engine.live.relay.actor import RelayActor
from engine.live.relay.view import RelayView
from engine.live.weights.segments import FOLDER, PREFIX, sweep
from engine.pipeline.messages.addresses import TRAINER, relay_address, rollout_address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_relay import WeightsWanted
from engine.pipeline.messages.to_rollout import WeightsServed
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.relay_chain import chain_order, chunk_bytes_for
from engine.spec.job import JobSpec
from tests.bench.engine.relays.publisher import PublisherActor
from tests.waiting import eventually

LOOK_EVERY_S: Final = 0.01  # each look takes time from the relays
WITHIN_S: Final = 60.0  # for a busy machine; the simulation tests the promised times, with an exact clock


class LoopbackLinks(Links):
    def address(self) -> str:
        return "127.0.0.1"


class ReplicaActor:
    """Collects the messages that relays send to it."""

    def __init__(self) -> None:
        self._served: list[Message] = []

    def deliver(self, message: Message) -> None:
        self._served.append(message)

    def served(self) -> list[Message]:
        return self._served


class Tier:
    """A chain of relays. Every test leaves all of them alive."""

    def __init__(self, ray: Any, *, num_relays: int, num_bytes: int) -> None:
        self._ray, self._num_relays = ray, num_relays
        self.num_chunks = -(-num_bytes // chunk_bytes_for(num_bytes, num_relays))
        """Chunks of a whole version."""
        self._make_remote = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups=CONCURRENCY_GROUPS)
        self.links = LoopbackLinks()
        self._spec = JobSpec.model_validate({"name": "relays", "rollout": {"replicas": num_relays}})
        self._publisher = self._make_remote(PublisherActor).remote(spec=self._spec, links=self.links)
        self._publisher.resize.remote(num_bytes)
        self._incarnations = dict.fromkeys(range(num_relays), 0)
        self._relays: dict[int, Any] = {}
        self.dead: set[int] = set()
        for host in range(num_relays):
            self._start(host)
        self._introduce()

    def end(self) -> None:
        for actor in (self._publisher, *self._relays.values()):
            self._ray.kill(actor, no_restart=True)

    def end_and_sweep(self) -> None:
        self.end()
        files = f"{PREFIX}{self.links.run}-*"
        what = "no shared memory of the relays is left"
        eventually(lambda: [*sweep(), *FOLDER.glob(files)], what, until=lambda names: not names)

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

    def wait_for(self, version: WeightsId, *, but: int | None = None) -> None:
        """Until the version is visible at every live relay."""

        def missing() -> list[int]:
            return [host for host in self.live if host != but and version not in self.view(host).visible]

        eventually(missing, f"no relay lacks version {version}", until=lambda hosts: not hosts, every_s=LOOK_EVERY_S)

    def wait_until_stored(self, version: WeightsId) -> None:
        what = f"the publisher has stored version {version}"
        eventually(lambda: self.stored, what, until=lambda stored: stored == version, every_s=LOOK_EVERY_S)

    def wait_for_chunks(self, host: int, number: int) -> None:
        what = f"relay {host} has {number} of {self.num_chunks} chunks"
        eventually(lambda: self.view(host).num_chunks, what, until=lambda held: held >= number, every_s=LOOK_EVERY_S)

    @property
    def live(self) -> list[int]:
        return [host for host in range(self._num_relays) if host not in self.dead]

    def chain(self) -> tuple[int, ...]:
        """The order of the live relays, once all agree on it."""
        claims = eventually(
            lambda: {self.view(host).claim for host in self.live},
            "the relays agree on one claim",
            until=lambda claims: len(claims) == 1,
            every_s=LOOK_EVERY_S,
        )
        return chain_order(self.live, claims.pop())

    def settle(self) -> tuple[int, ...]:
        """Publishes a version to all relays, so that each has received its neighbours' messages."""
        version = self.publish()
        self.wait_for(version)
        self.wait_until_stored(version)
        return self.chain()

    def serve_replicas(self) -> list[WeightsServed]:
        replica = self._make_remote(ReplicaActor).remote()
        for host in self.live:
            self._relays[host].connect.remote({rollout_address(host): replica})
            self._relays[host].deliver.remote(WeightsWanted(replica=host, incarnation=0, held=NO_WEIGHTS, exact=None))
        served: list[WeightsServed] = eventually(
            lambda: self._ray.get(replica.served.remote()),
            f"relays {self.live} serve their replicas",
            until=lambda messages: len(messages) == len(self.live),
        )
        self._ray.kill(replica, no_restart=True)
        return served

    def _start(self, host: int) -> None:
        self._relays[host] = self._make_remote(RelayActor).remote(
            spec=self._spec,
            host=host,
            hosts=range(self._num_relays),
            incarnation=self._incarnations[host],
            links=self.links,
        )

    def _introduce(self) -> None:
        peers = {relay_address(host): relay for host, relay in self._relays.items()}
        self._publisher.connect.remote(peers)
        for relay in self._relays.values():
            relay.connect.remote({**peers, TRAINER: self._publisher})
