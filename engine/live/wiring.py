"""The network of one job: creates the actors, tells them of each other, replaces a replica, ends them all.

Invariants:
- all actors are owned by the driver's process, so none outlives it;
- an address leads to the newest incarnation only.
"""

import logging
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from engine.live.actor import CONCURRENCY_GROUPS
from engine.live.checkpoints import ResumePoint
from engine.live.data_actor import DataActor
from engine.live.placement import (
    DATA_BUNDLE,
    FIRST_ROLLOUT_BUNDLE,
    RELAY_BUNDLE,
    TRAINER_BUNDLE,
    Placement,
)
from engine.live.relay_actor import RelayActor
from engine.live.rollout_actor import RolloutActor
from engine.live.trainer_actor import TrainerActor
from engine.pipeline.messages import DATA, RELAY, TRAINER, Address, Message, rollout_address
from engine.pipeline.records import DataProgress
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)


class Network:
    def __init__(self, *, spec: JobSpec, placement: Placement, checkpoints: Path, resume: ResumePoint | None) -> None:
        self._spec, self._placement = spec, placement
        self._actors: dict[Address, Any] = {}
        step = 0 if resume is None else resume.step
        # The slowest to start first: they all start side by side.
        self._create(
            TRAINER,
            TrainerActor,
            TRAINER_BUNDLE,
            spec=spec,
            checkpoints=checkpoints,
            resume_folder=None if resume is None else resume.folder,
            start_step=step,
        )
        for replica in range(spec.rollout.replicas):
            self._create_rollout(replica, incarnation=0)
        progress = DataProgress() if resume is None else resume.data_progress()
        self._create(DATA, DataActor, DATA_BUNDLE, spec=spec, start_step=step, progress=progress)
        self._create(RELAY, RelayActor, RELAY_BUNDLE)
        for address in self._actors:
            self._connect(address)

    @property
    def addresses(self) -> list[Address]:
        return list(self._actors)

    def actor(self, address: Address) -> Any:
        return self._actors[address]

    def send(self, to: Address, message: Message) -> None:
        self._actors[to].deliver.remote(message)

    def replace_rollout(self, replica: int, incarnation: int) -> None:
        address = rollout_address(replica)
        self._create_rollout(replica, incarnation=incarnation)
        self._connect(address)
        for other in (DATA, RELAY):
            self._actors[other].connect.remote({address: self._actors[address]})

    def end_rollout(self, replica: int) -> None:
        ray.kill(self._actors[rollout_address(replica)], no_restart=True)

    def end(self) -> None:
        try:
            for actor in self._actors.values():
                ray.kill(actor, no_restart=True)
            ray.util.remove_placement_group(self._placement.group)
        except (RayError, ConnectionError) as error:  # Ray itself is gone, and with it all that it ran
            log.warning("ending the actors failed: %s", error)

    def _create_rollout(self, replica: int, *, incarnation: int) -> None:
        self._create(
            rollout_address(replica),
            RolloutActor,
            FIRST_ROLLOUT_BUNDLE + replica,
            spec=self._spec,
            replica=replica,
            incarnation=incarnation,
        )

    def _create(self, address: Address, kind: type, bundle: int, **arguments: object) -> None:
        options = {**self._placement.options(bundle, self._spec), "concurrency_groups": CONCURRENCY_GROUPS}
        make_remote: Any = ray.remote(**options)
        self._actors[address] = make_remote(kind).remote(**arguments)

    def _connect(self, address: Address) -> None:
        """Whom this actor sends to. Rollouts do not know of each other."""
        others = {other: actor for other, actor in self._actors.items() if other != address}
        if address.startswith("rollout/"):
            others = {other: others[other] for other in (DATA, RELAY)}
        self._actors[address].connect.remote(others)
