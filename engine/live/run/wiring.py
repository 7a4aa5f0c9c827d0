"""The network of one job: creates the actors, connects them, replaces one, ends them all.

Invariants:
- the driver's process owns all actors, so none outlives it;
- an address always means the newest incarnation;
- a restarted trainer starts from the newest checkpoint that verifies, restarted data from its log.
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
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    checkpoints: Path
    journal: Path
    data: Path | None
    """The folder in which names of prompt files are looked up; None: the spec has paths."""
    assets: JobAssets | None = None
    """The data sets and models that each node fetches before use; None: they are on every node."""
    recordings: Path | None = None
    """The folder for recordings of every brain; None: no recordings."""
    recorded_step: tuple[int, Path] | None = None
    """A step of the trainer to record, and the folder for it."""


class Network:
    def __init__(
        self,
        *,
        spec: JobSpec,
        plan: Plan,
        placement: Placement,
        folders: Folders,
        resume: ResumePoint | None,
        num_replicas: int | None = None,
    ) -> None:
        """`num_replicas`: at the start, including those without a host yet; None: all of the spec's."""
        self.num_replicas = spec.rollout.replicas if num_replicas is None else num_replicas
        self.spec, self.plan, self.placement = spec, plan, placement
        self._folders, self._resume = folders, resume
        self._links = Links()
        self._actors: dict[Address, Any] = {}
        for part in (*self.parts, *map(environment_address, range(spec.environment.workers))):
            self._create(part, incarnation=0)
        for address in self._actors:
            self._introduce(address)

    @property
    def parts(self) -> list[Address]:
        """The parts that the manager watches, the slowest to start first; all start in parallel."""
        places = self.placement.places
        replicas = map(rollout_address, range(len(places.replicas)))
        return [TRAINER, *replicas, *map(relay_address, range(len(places.relays))), DATA]

    @property
    def waiting(self) -> list[Address]:
        """Replicas that start as soon as a host is free."""
        return [rollout_address(replica) for replica in range(len(self.placement.places.replicas), self.num_replicas)]

    @property
    def away(self) -> list[Address]:
        """Replicas that a resize may start later."""
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
        checkpoint: CheckpointReported | None,
    ) -> None:
        """`hosts`: of each of its processes; `relay`: a replica's; `checkpoint`: the newest one reported to the driver,
        for a trainer."""
        self._create(part, incarnation=incarnation, hosts=hosts, relay=relay, checkpoint=checkpoint)
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
        except (RayError, ConnectionError) as error:  # Ray itself is gone, and its actors with it
            log.warning("could not end the actors: %s", error)

    # ── creation ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _create(
        self,
        part: Address,
        *,
        incarnation: int,
        hosts: tuple[str, ...] = (),
        relay: int | None = None,
        checkpoint: CheckpointReported | None = None,
    ) -> None:
        kind, arguments = self._actor_of(part, incarnation)
        if part == TRAINER:
            arguments |= {
                "ranks": self.placement.rank_options(hosts),
                "ranks_per_host": self.placement.ranks_per_host(hosts),
                "reported": checkpoint,
            }
        elif part.kind == "rollout":
            arguments["relay"] = self.placement.places.relay_of(part.number) if relay is None else relay
        options = {
            **self.placement.options(part, hosts),
            "concurrency_groups": CONCURRENCY_GROUPS,
            **kind.options(self.spec),
        }
        make_remote: Any = ray.remote(**options)
        self._actors[part] = make_remote(kind).remote(**arguments)

    def _actor_of(self, part: Address, incarnation: int) -> tuple[Any, dict[str, Any]]:
        """The actor's class and its arguments."""
        match part.kind:
            case "trainer":
                return TrainerActor, {
                    "spec": self.spec,
                    "plan": self.plan,
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
                    "plan": self.plan,
                    "start_step": 0 if self._resume is None else self._resume.step,
                    "progress": self._progress(),
                    "journal": self._folders.journal,
                    "incarnation": incarnation,
                    "recordings": self._folders.recordings,
                }
            case "relay":
                return RelayActor, {
                    "spec": self.spec,
                    "host": part.number,
                    "hosts": self._relays,
                    "incarnation": incarnation,
                    "links": self._links,
                    "recordings": self._folders.recordings,
                }
            case "rollout":
                return RolloutActor, {
                    "spec": self.spec,
                    "plan": self.plan,
                    "replica": part.number,
                    "assets": self._folders.assets,
                    "incarnation": incarnation,
                    "links": self._links,
                    "recordings": self._folders.recordings,
                }
            case "environment":
                return EnvironmentActor, {
                    "spec": self.spec,
                    "worker": part.number,
                    "data_folder": self._folders.data,
                    "assets": self._folders.assets,
                }
            case _:
                raise ValueError(f"{part} has no actor")

    @property
    def _relays(self) -> tuple[int, ...]:
        """All present and past relays; the manager reports which of them have a host."""
        known = {part.number for part in self._actors if part.kind == "relay"}
        return tuple(sorted(known.union(range(len(self.placement.places.relays)))))

    def _progress(self) -> DataProgress:
        """Data's progress at the start. An evaluation uses only a checkpoint's weights, so it starts at zero."""
        if self._resume is None or self.spec.only_evaluates:
            return DataProgress()
        return self._resume.data_progress()

    def _introduce(self, address: Address) -> None:
        """Connects this actor to its peers."""
        peers = {other: self._actors[other] for other in self._known_to(address) if other in self._actors}
        self._actors[address].connect.remote(peers)

    def _known_to(self, address: Address) -> list[Address]:
        others = [other for other in self._actors if other != address]
        if address.kind == "environment":
            return [other for other in others if other.kind == "rollout"]
        if address.kind == "rollout":
            return [other for other in others if other != TRAINER]
        return [other for other in others if other.kind != "environment"]
