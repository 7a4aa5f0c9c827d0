"""Simulated bodies of data and the trainer, and the disks that survive their processes.

Weights are chunks named `epoch.version/0`, `…/1`, …; a name is also the hash; a corrupted chunk has another name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine.pipeline.data.brain import Recovered
from engine.pipeline.effects import (
    Effect,
    ForgetWeights,
    Persist,
    PublishWeights,
    RepublishWeights,
    SaveCheckpoint,
    TrainOn,
)
from engine.pipeline.journal import DataSnapshot, Record
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_data import Persisted
from engine.pipeline.messages.to_relay import WeightsOffered
from engine.pipeline.messages.to_trainer import BatchTrained, CheckpointWritten
from engine.pipeline.records import DataProgress
from engine.policy.lineage import BASE_WEIGHTS, WeightsId
from engine.sim.chance import Chance
from engine.sim.fault_costs import Costs
from engine.sim.faults import Faults
from engine.sim.oracle.pipeline import Oracle, demand
from engine.weights.port import WeightManifest

NUM_CHUNKS: Final = 4
TORN: Final = "torn "

Chunks = tuple[str, ...]
Post = Callable[[Address, Message], None]
"""Sends a message over the network."""
Later = Callable[[float, Message], None]
"""Delivers a message to the body's own brain after a delay, unless the body is dead by then."""
After = Callable[[float, Callable[[], None]], None]
"""Runs a callback of the body after a delay, unless the body is dead by then."""
Done = Callable[[], Message | None]
"""Returns the message that finished work sends to the body's own brain."""
Work = Callable[[str, float, Done], float]
"""Blocks the loop with work of the usual duration or a random longer one. Returns the duration."""
WorkAside = Callable[[str, float, Callable[[], None]], None]
"""Does such work on a worker thread, then runs a callback on the loop."""


def manifest_of(weights: WeightsId) -> WeightManifest:
    chunks = tuple(f"{weights.epoch}.{weights.version}/{index}" for index in range(NUM_CHUNKS))
    return WeightManifest(
        weights=weights,
        num_bytes=NUM_CHUNKS,
        chunk_bytes=1,
        identity="+".join(chunks),
        chunk_hashes=chunks,
        tensors=(),
    )


def carried(chunks: Chunks, chance: Chance, faults: Faults) -> Chunks:
    """The chunks as they arrive."""
    if not faults.corrupt:
        return chunks
    return tuple(f"{TORN}{chunk}" if chance.happens(faults.corrupt) else chunk for chunk in chunks)


@dataclass(slots=True)
class Log:
    """Data's log on disk: an appended record survives every process."""

    snapshot: DataSnapshot | None = None
    records: list[Record] = field(default_factory=list)
    serial: int = 0

    def recovered(self) -> Recovered:
        return Recovered(snapshot=self.snapshot, records=tuple(self.records), serial=self.serial)


class DataBody:
    def __init__(self, *, log: Log, costs: Costs, oracle: Oracle, later: Later, after: After, work: Work) -> None:
        self._log, self._costs, self._oracle = log, costs, oracle
        self._later, self._after, self._work = later, after, work

    def perform(self, effect: Effect) -> None:
        if not isinstance(effect, Persist):
            raise TypeError(f"data's body does not do {type(effect).__name__}")
        self._after(0.0, lambda: self._write(effect))

    def _write(self, effect: Persist) -> None:
        """Writes after all other effects of the message."""
        self._work("log", self._costs.persist_s, lambda: self._append(effect))

    def _append(self, effect: Persist) -> None:
        log = self._log
        demand(effect.serial == log.serial + len(effect.records), f"record {effect.serial} after {log.serial}")
        log.serial = effect.serial
        if effect.snapshot is not None:
            log.snapshot, log.records = effect.snapshot, []
        else:
            log.records += effect.records
        self._oracle.on_persisted(effect.records)
        self._later(self._costs.persist_s, Persisted(serial=effect.serial))


@dataclass(slots=True)
class CheckpointStore:
    """Complete checkpoints by step; the newest may fail its verification. One that was skipped is deleted."""

    saved: dict[int, DataProgress] = field(default_factory=dict)
    reported_step: int = 0
    """The step of the newest checkpoint reported to the driver."""

    def go_back(self, *, is_rotten: bool) -> int:
        for step in [step for step in self.saved if step > self.reported_step]:
            del self.saved[step]
        if is_rotten and len(self.saved) > 1:
            del self.saved[max(self.saved)]
        return max(self.saved)


class TrainerBody:
    def __init__(
        self,
        *,
        epoch: int,
        chance: Chance,
        faults: Faults,
        costs: Costs,
        store: CheckpointStore,
        oracle: Oracle,
        later: Later,
        work: Work,
        aside: WorkAside,
        post: Post,
    ) -> None:
        self._epoch, self._chance, self._faults, self._costs = epoch, chance, faults, costs
        self._store, self._oracle = store, oracle
        self._later, self._work, self._aside, self._post = later, work, aside, post
        self._kept: set[WeightsId] = set()

    def copy_base(self) -> None:
        """Before the checkpoint is loaded."""
        self._oracle.on_base_copied(by=self._epoch)
        self._kept.add(BASE_WEIGHTS)

    def perform(self, effect: Effect) -> None:
        match effect:
            case PublishWeights():
                self._oracle.on_publish(effect.weights, by=self._epoch)
                self._kept.add(effect.weights)
                self._work("copy", self._costs.copy_s, lambda: self._offer(effect))
            case RepublishWeights():
                demand(effect.weights in self._kept, f"version {effect.weights} was requested again, but is gone")
                self._offer(effect)
            case ForgetWeights():
                self._kept.discard(effect.weights)
            case TrainOn():
                self._oracle.on_train(self._epoch, effect.step, effect.groups, effect.lineage)
                advantages = tuple(0.0 for group in effect.groups for _ in group.trajectories)
                trained = BatchTrained(step=effect.step, metrics={"train/loss": 0.0}, advantages=advantages)
                self._work("micro-batch", self._costs.train_s, lambda: trained)
            case SaveCheckpoint():
                self._oracle.on_checkpoint(self._epoch, effect.step, effect.progress)
                self._aside("checkpoint", self._costs.save_s, lambda: self._save(effect))
            case _:
                raise TypeError(f"the trainer's body does not do {type(effect).__name__}")

    def _save(self, effect: SaveCheckpoint) -> None:
        self._store.saved[effect.step] = effect.progress
        self._oracle.on_saved(self._epoch, effect.step)
        uri = f"step/{effect.step}"
        self._later(0.0, CheckpointWritten(step=effect.step, uri=uri, manifest_sha256="0" * 64, num_bytes=1))

    def _offer(self, effect: PublishWeights | RepublishWeights) -> None:
        manifest = manifest_of(effect.weights)
        payload = carried(manifest.chunk_hashes, self._chance, self._faults)
        self._post(effect.to, WeightsOffered(manifest=manifest.cut, pinned=effect.pinned, payload=payload))
