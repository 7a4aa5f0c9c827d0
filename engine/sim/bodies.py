"""Simulated bodies: what the effects of each brain cost and do, without a tensor.

Weights of version v are chunks called `v/0`, `v/1`, …; a corrupted chunk has another name, which is its hash.
"""

from collections.abc import Callable
from typing import Final

from engine.pipeline.effects import (
    Effect,
    FetchWeights,
    ForgetWeights,
    InstallWeights,
    PublishWeights,
    RepublishWeights,
    SaveCheckpoint,
    ServeWeights,
    StartSequences,
    TrainOn,
)
from engine.pipeline.messages import (
    RELAY,
    BatchTrained,
    BufferHashed,
    CheckpointWritten,
    ChunkHashed,
    InstallRefused,
    Message,
    TrajectoriesEnded,
    WeightsInstalled,
    WeightsOffered,
    WeightsServed,
)
from engine.pipeline.records import GroupTask, SampleKey, Trajectory
from engine.sim.chance import Chance
from engine.sim.checks import Oracle, demand
from engine.sim.faults import Faults
from engine.weights.port import WeightManifest

NUM_CHUNKS: Final = 4
TOKEN_S: Final = 0.01
MEDIAN_TOKENS: Final = 20.0
SIGMA: Final = 0.99  # ln(10) / 2.326: the 99th percentile is ten times the median
MAX_TOKENS: Final = 400
INSTALL_S: Final = 0.02
FETCH_S: Final = 0.03
TRAIN_S: Final = 0.25

Chunks = tuple[str, ...]
Post = Callable[[str, Message], None]
"""To an address, over the network."""
Later = Callable[[float, Message], None]
"""To the own brain, after some seconds, unless the body is dead by then."""


def manifest_of(version: int) -> WeightManifest:
    chunks = tuple(f"{version}/{index}" for index in range(NUM_CHUNKS))
    return WeightManifest(
        version=version, num_bytes=NUM_CHUNKS, chunk_bytes=1, sha256="+".join(chunks), chunk_sha256=chunks, tensors=()
    )


class RolloutBody:
    def __init__(self, *, chance: Chance, faults: Faults, oracle: Oracle, later: Later) -> None:
        self._chance, self._faults, self._oracle, self._later = chance, faults, oracle, later
        self._version = -1
        self._running: dict[SampleKey, int] = {}

    def perform(self, effect: Effect) -> None:
        match effect:
            case StartSequences():
                for task in effect.tasks:
                    self._start(task)
            case InstallWeights():
                self._install(effect)
            case _:
                raise TypeError(f"a rollout's body does not do {type(effect).__name__}")

    def on_delivered(self, message: Message) -> None:
        if isinstance(message, WeightsInstalled):
            self._version = message.version
        if isinstance(message, TrajectoriesEnded):
            for trajectory in message.trajectories:
                self._running.pop(trajectory.key, None)

    def _start(self, task: GroupTask) -> None:
        demand(task.exact_version in (None, self._version), f"{task.key} runs on version {self._version}")
        for sample in task.samples:
            key = SampleKey(group=task.key, sample=sample)
            demand(key not in self._running, f"{key} started twice on one replica")
            self._running[key] = self._version
            num_tokens = min(MAX_TOKENS, max(1, int(self._chance.lognormal(median=MEDIAN_TOKENS, sigma=SIGMA))))
            failure = "the grader broke" if self._chance.happens(self._faults.grader_fails) else ""
            trajectory = Trajectory(
                key=key, version=self._version, reward=float(sample % 2), num_tokens=num_tokens, failure=failure
            )
            self._later(num_tokens * TOKEN_S, TrajectoriesEnded(trajectories=(trajectory,)))

    def _install(self, effect: InstallWeights) -> None:
        self._oracle.on_install(running_versions=set(self._running.values()))
        version = effect.manifest.version
        if effect.payload != effect.manifest.chunk_sha256:
            self._later(INSTALL_S, InstallRefused(version=version, reason="a chunk has another hash"))
            return
        self._later(INSTALL_S, WeightsInstalled(version=version))


class RelayBody:
    def __init__(self, *, chance: Chance, faults: Faults, oracle: Oracle, later: Later, post: Post) -> None:
        self._chance, self._faults, self._oracle = chance, faults, oracle
        self._later, self._post = later, post
        self._chunks: dict[int, Chunks] = {}

    def perform(self, effect: Effect) -> None:
        match effect:
            case FetchWeights():
                self._fetch(effect)
            case ServeWeights():
                manifest, chunks = manifest_of(effect.version), self._chunks[effect.version]
                self._oracle.on_serve(effect.version, is_whole=chunks == manifest.chunk_sha256)
                self._post(effect.to, WeightsServed(manifest=manifest, payload=self._carried(chunks)))
            case _:  # dropping: the simulated bytes are kept, so that serving a dropped one would still be seen
                pass

    def _fetch(self, effect: FetchWeights) -> None:
        version = effect.manifest.version
        sent = effect.payload
        assert isinstance(sent, tuple)
        self._chunks[version] = sent
        for index, chunk in enumerate(sent):
            self._later(FETCH_S, ChunkHashed(version=version, index=index, sha256=chunk))
        self._later(FETCH_S, BufferHashed(version=version, sha256="+".join(sent)))

    def _carried(self, chunks: Chunks) -> Chunks:
        return carried(chunks, self._chance, self._faults)


class TrainerBody:
    def __init__(self, *, chance: Chance, faults: Faults, oracle: Oracle, later: Later, post: Post) -> None:
        self._chance, self._faults, self._oracle = chance, faults, oracle
        self._later, self._post = later, post
        self._kept: set[int] = set()

    def perform(self, effect: Effect) -> None:
        match effect:
            case PublishWeights():
                self._oracle.published.add(effect.version)
                self._kept.add(effect.version)
                self._offer(effect.version, pinned=effect.pinned)
            case RepublishWeights():
                demand(effect.version in self._kept, f"version {effect.version} is gone and was asked for again")
                self._offer(effect.version, pinned=effect.pinned)
            case ForgetWeights():
                self._kept.discard(effect.version)
            case TrainOn():
                self._oracle.on_train(effect.step, effect.groups)
                advantages = tuple(0.0 for group in effect.groups for _ in group.trajectories)
                trained = BatchTrained(step=effect.step, metrics={"train/loss": 0.0}, advantages=advantages)
                self._later(TRAIN_S, trained)
            case SaveCheckpoint():
                self._oracle.on_checkpoint(effect.step, effect.progress)
                written = CheckpointWritten(
                    step=effect.step, uri=f"step/{effect.step}", manifest_sha256="0" * 64, num_bytes=1
                )
                self._later(0.0, written)
            case _:
                raise TypeError(f"the trainer's body does not do {type(effect).__name__}")

    def _offer(self, version: int, *, pinned: bool) -> None:
        manifest = manifest_of(version)
        payload = carried(manifest.chunk_sha256, self._chance, self._faults)
        self._post(RELAY, WeightsOffered(manifest=manifest, pinned=pinned, payload=payload))


def carried(chunks: Chunks, chance: Chance, faults: Faults) -> Chunks:
    """The chunks as they arrive."""
    return tuple(f"torn {chunk}" if chance.happens(faults.corrupt) else chunk for chunk in chunks)
