"""The network of one job: creates the actors, tells them of each other, replaces one, ends them all.

Invariants:
- all actors are owned by the driver's process, so none outlives it;
- an address leads to the newest incarnation only;
- a trainer that is started again begins with the newest checkpoint that verifies, data with its log.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from engine.live.assets.job_assets import JobAssets
from engine.live.body.actor import CONCURRENCY_GROUPS
from engine.live.checkpoints.resuming import ResumePoint
from engine.live.data.actor import DataActor
from engine.live.environment.actor import EnvironmentActor
from engine.live.process.links import Links
from engine.live.relay.actor import RelayActor
from engine.live.rollout.actor import RolloutActor
from engine.live.run.placement import Placement
from engine.live.trainer.actor import TrainerActor
from engine.pipeline.messages.addresses import (
    DATA,
    TRAINER,
    Address,
    environment_address,
    relay_address,
    rollout_address,
)
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import CheckpointReported
from engine.pipeline.records import DataProgress
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    checkpoints: Path
    journal: Path
    data: Path | None
    """The folder of files of prompts, to which names lead; None: any path."""
    assets: JobAssets | None = None
    """To be on a node before what the spec names there is read; None: it is there."""
    recordings: Path | None = None
    """The folder that keeps every brain's words and decisions; None: none."""
    recorded_step: tuple[int, Path] | None = None
    """A step of the trainer, and the folder that keeps it; None: none."""


class Network:
    def __init__(
        self,
        *,
        spec: JobSpec,
        placement: Placement,
        folders: Folders,
        resume: ResumePoint | None,
        num_replicas: int | None = None,
    ) -> None:
        """`num_replicas`: to begin with, those included that find no host yet; None: all of the spec's."""
        self.num_replicas = spec.rollout.replicas if num_replicas is None else num_replicas
        self.spec, self.placement, self._folders, self._resume = spec, placement, folders, resume
        self._links = Links()
        self._actors: dict[Address, Any] = {}
        for part in (*self.parts, *map(environment_address, range(spec.environment.workers))):
            self._create(part, incarnation=0)
        for address in self._actors:
            self._introduce(address)

    @property
    def parts(self) -> list[Address]:
        """The parts that the manager watches; the slowest to start first, since they all start side by side."""
        places = self.placement.places
        replicas = map(rollout_address, range(len(places.replicas)))
        return [TRAINER, *replicas, *map(relay_address, range(len(places.relays))), DATA]

    @property
    def waiting(self) -> list[Address]:
        """Replicas that come as soon as there is a host for them."""
        return [rollout_address(replica) for replica in range(len(self.placement.places.replicas), self.num_replicas)]

    @property
    def away(self) -> list[Address]:
        """Replicas that may come later."""
        return [rollout_address(replica) for replica in range(self.num_replicas, self.spec.rollout.replicas)]

    @property
    def addresses(self) -> list[Address]:
        return list(self._actors)

    def actor(self, address: Address) -> Any:
        return self._actors[address]

    def send(self, to: Address, message: Message) -> None:
        self._actors[to].deliver.remote(message)

    def replace(
        self,
        part: Address,
        incarnation: int,
        *,
        hosts: tuple[str, ...] = (),
        relay: int | None = None,
        told: CheckpointReported | None,
    ) -> None:
        """`hosts`: of each of its processes; `relay`: that of a replica; `told`: the newest checkpoint of which the
        driver was told, for a trainer."""
        self._create(part, incarnation=incarnation, hosts=hosts, relay=relay, told=told)
        self._introduce(part)
        for address, actor in self._actors.items():
            if part in self._known_to(address):
                actor.connect.remote({part: self._actors[part]})

    def end(self, part: Address) -> None:
        ray.kill(self._actors[part], no_restart=True)

    def end_all(self) -> None:
        try:
            for actor in self._actors.values():
                ray.kill(actor, no_restart=True)
            ray.util.remove_placement_group(self.placement.group)
        except (RayError, ConnectionError) as error:  # Ray itself is gone, and with it all that it ran
            log.warning("ending the actors failed: %s", error)

    # ── creation ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _create(
        self,
        part: Address,
        *,
        incarnation: int,
        hosts: tuple[str, ...] = (),
        relay: int | None = None,
        told: CheckpointReported | None = None,
    ) -> None:
        kind, arguments = self._made_of(part, incarnation)
        if part == TRAINER:
            arguments |= {"ranks": self.placement.rank_options(hosts), "told": told}
        elif part.kind == "rollout":
            arguments["relay"] = self.placement.places.relay_of(part.number) if relay is None else relay
        options = {
            **self.placement.options(part, hosts),
            "concurrency_groups": CONCURRENCY_GROUPS,
            **kind.options(self.spec),
        }
        make_remote: Any = ray.remote(**options)
        self._actors[part] = make_remote(kind).remote(spec=self.spec, **arguments)

    def _made_of(self, part: Address, incarnation: int) -> tuple[Any, dict[str, Any]]:
        """The actor's class, and what its constructor is told."""
        match part.kind:
            case "trainer":
                return TrainerActor, {
                    "checkpoints": self._folders.checkpoints,
                    "resume": self._resume,
                    "incarnation": incarnation,
                    "links": self._links,
                    "recordings": self._folders.recordings,
                    "recorded_step": self._folders.recorded_step,
                    "assets": self._folders.assets,
                }
            case "data":
                return DataActor, {
                    "start_step": 0 if self._resume is None else self._resume.step,
                    "progress": self._progress(),
                    "journal": self._folders.journal,
                    "incarnation": incarnation,
                    "recordings": self._folders.recordings,
                }
            case "relay":
                return RelayActor, {
                    "host": part.number,
                    "hosts": self._relays,
                    "incarnation": incarnation,
                    "links": self._links,
                    "recordings": self._folders.recordings,
                }
            case "rollout":
                return RolloutActor, {
                    "replica": part.number,
                    "assets": self._folders.assets,
                    "incarnation": incarnation,
                    "links": self._links,
                    "recordings": self._folders.recordings,
                }
            case "environment":
                return EnvironmentActor, {
                    "worker": part.number,
                    "data_folder": self._folders.data,
                    "assets": self._folders.assets,
                }
            case _:
                raise ValueError(f"no actor is {part}")

    @property
    def _relays(self) -> tuple[int, ...]:
        """Those that there are or were; the manager tells the others which have a host."""
        known = {part.number for part in self._actors if part.kind == "relay"}
        return tuple(sorted(known.union(range(len(self.placement.places.relays)))))

    def _progress(self) -> DataProgress:
        """An evaluation takes a checkpoint's weights; what was trained into them is not its own."""
        if self._resume is None or self.spec.only_evaluates:
            return DataProgress()
        return self._resume.data_progress()

    def _introduce(self, address: Address) -> None:
        """Tell this actor of all that it sends to."""
        peers = {other: self._actors[other] for other in self._known_to(address) if other in self._actors}
        self._actors[address].connect.remote(peers)

    def _known_to(self, address: Address) -> list[Address]:
        others = [other for other in self._actors if other != address]
        if address.kind == "environment":
            return [other for other in others if other.kind == "rollout"]
        if address.kind == "rollout":
            return [other for other in others if other != TRAINER]
        return [other for other in others if other.kind != "environment"]
