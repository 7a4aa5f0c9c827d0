"""Builders for tests of brains: a small plan, message constructors, and a data brain with its disk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.pipeline.data.brain import DataBrain, Recovered
from engine.pipeline.effects import Effect, Persist, Send
from engine.pipeline.journal import DataSnapshot, Record
from engine.pipeline.messages.addresses import rollout_address
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import BatchWanted, Persisted, ReplicaSynced, ToData
from engine.pipeline.messages.to_rollout import WeightsServed, WorkGranted
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.plan import Plan
from engine.pipeline.records import (
    Failure,
    GroupKey,
    GroupTask,
    HeldGroup,
    SampleKey,
    SampleProgress,
    Trajectory,
    VersionRun,
)
from engine.policy.lineage import WeightsId
from engine.policy.recovery import ABSENT_AFTER_S
from engine.policy.schedule import PRESETS
from engine.weights.port import WeightManifest

# With one slot for weights: a replica drains before it takes newer ones.
PLAN = Plan(
    schedule=replace(PRESETS["laminar"], in_flight="drain"),
    steps=3,
    groups_per_step=2,
    group_size=2,
    checkpoint_every=10,
    evaluation_prompts=2,
    evaluate_every=0,
    max_batch=8,
)
BESIDE = replace(PLAN, schedule=PRESETS["laminar"], weight_slots=2)


def of(effects: Iterable[Effect], kind: type) -> list[Any]:
    """Effects and messages of this kind, for any receiver."""
    messages = [effect.message if isinstance(effect, Send) else effect for effect in effects]
    return [message for message in messages if isinstance(message, kind)]


def to_replica(effects: Iterable[Effect], replica: int) -> list[WorkGranted]:
    address = rollout_address(replica)
    return of([effect for effect in effects if isinstance(effect, Send) and effect.to == address], WorkGranted)


def granted(effects: Iterable[Effect]) -> list[GroupTask]:
    return [task for grant in of(effects, WorkGranted) for task in grant.tasks]


def manifest(version: int, epoch: int = 0) -> WeightManifest:
    weights = WeightsId(epoch, version)
    return WeightManifest(weights=weights, num_bytes=0, chunk_bytes=1, identity="0", chunk_hashes=(), tensors=())


def served(version: int, epoch: int = 0) -> WeightsServed:
    return WeightsServed(manifest=manifest(version, epoch), payload=None)


def answers(
    tasks: Iterable[GroupTask], *, version: int = 0, epoch: int = 0, failure: str = "", reward: float = 1.0
) -> tuple[Trajectory, ...]:
    return tuple(
        Trajectory(
            key=SampleKey(group=task.key, sample=sample),
            weights=WeightsId(epoch, version),
            reward=reward,
            num_tokens=5,
            failure=Failure(kind="error", reason=failure) if failure else None,
        )
        for task in tasks
        for sample in task.samples
    )


def sample_progress(key: GroupKey, sample: int, *, num_tokens: int, version: int = 0) -> SampleProgress:
    """The progress of an unfinished sample."""
    run = VersionRun(weights=WeightsId(0, version), num_tokens=num_tokens)
    return SampleProgress(key=SampleKey(group=key, sample=sample), num_tokens=num_tokens, runs=(run,))


def holding(tasks: Iterable[GroupTask], *, version: int = 0) -> tuple[HeldGroup, ...]:
    weights = WeightsId(0, version)
    return tuple(HeldGroup(key=task.key, lease=task.lease, samples=task.samples, weights=weights) for task in tasks)


@dataclass
class Disk:
    """The disk of data: everything on it survives."""

    snapshot: DataSnapshot | None = None
    records: list[Record] = field(default_factory=list)
    serial: int = 0

    def write(self, persist: Persist) -> None:
        self.serial = persist.serial
        if persist.snapshot is None:
            self.records += persist.records
        else:
            self.snapshot, self.records = persist.snapshot, []

    def recovered(self) -> Recovered:
        return Recovered(snapshot=self.snapshot, records=tuple(self.records), serial=self.serial)


class DataWithDisk:
    """A data brain with its disk, and replicas that send what a test scripts."""

    def __init__(self, plan: Plan = PLAN, **options: Any) -> None:
        self.plan, self.options = plan, options
        self.brain = DataBrain(plan, **options)
        self.disk = Disk()
        self.is_disk_slow = False
        self.incarnation = 0
        self.serial = 0
        self.now = 0.0

    def handle(self, message: ToData | Any) -> list[Effect]:
        done: list[Effect] = []
        for effect in self.brain.handle(message, self.now):
            done.append(effect)
            if isinstance(effect, Persist) and not self.is_disk_slow:
                self.disk.write(effect)
                done += self.handle(Persisted(serial=effect.serial))
        return done

    def wait(self, seconds: float) -> list[Effect]:
        """Lets time pass in ticks; returns all effects."""
        until = self.now + seconds
        done: list[Effect] = []
        while self.now < until:
            self.now = min(until, self.now + ABSENT_AFTER_S)
            done += self.handle(Tick())
        return done

    def restart(self) -> "DataWithDisk":
        self.incarnation += 1
        self.brain = DataBrain(self.plan, incarnation=self.incarnation, recovered=self.disk.recovered(), **self.options)
        return self

    def sync(self, replica: int = 0, *, version: int = 0, wants: int = 8, **fields: Any) -> list[Effect]:
        self.serial += 1
        message = ReplicaSynced(
            replica=replica,
            incarnation=fields.pop("incarnation", 0),
            serial=fields.pop("serial", self.serial),
            weights=WeightsId(fields.pop("epoch", 0), version),
            wants=wants,
            room=fields.pop("room", wants),
            groups=fields.pop("groups", ()),
            finished=fields.pop("finished", ()),
            **fields,
        )
        return self.handle(message)

    def past_the_evaluation(self) -> "DataWithDisk":
        tasks = granted(self.sync(wants=self.plan.evaluation_prompts))
        self.sync(finished=answers(tasks), wants=0)
        return self

    def batch(self, step: int, **fields: Any) -> list[BatchReady]:
        return of(self.handle(BatchWanted(step=step, **fields)), BatchReady)

    def train(self, step: int, **fields: Any) -> BatchReady:
        """Ask for this step's batch, with one replica that answers everything on the newest weights."""
        batches = self.batch(step, **fields)
        epoch = fields.get("epoch", 0)
        for _ in range(4):
            if batches:
                return batches[-1]
            tasks = granted(self.sync(version=step - 1, epoch=epoch, wants=4))
            effects = self.sync(
                version=step - 1, epoch=epoch, wants=0, finished=answers(tasks, version=step - 1, epoch=epoch)
            )
            batches = of(effects, BatchReady)
        raise AssertionError(f"no batch for step {step}")

    @property
    def counts(self) -> dict[str, int]:
        return self.brain.state.counts()


def keys_of(batch: BatchReady) -> Sequence[SampleKey]:
    return [trajectory.key for group in batch.groups for trajectory in group.trajectories]
