"""Effects: orders of a brain. `Send` goes over the network; every other one is for the brain's own body.

Invariant: an effect is plain data. Carrying it out twice must be as harmless as the brain's messages are.
"""
# Over budget: every brain's orders side by side, each a few lines; divided they would have to be searched for.

from dataclasses import dataclass
from typing import Literal

from engine.pipeline.journal import DataSnapshot, Record
from engine.pipeline.messages.addresses import RELAY, Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_rollout import SequencesHandedOver
from engine.pipeline.records import CompleteGroup, DataProgress, GroupTask, HeardUpTo, HeldGroup
from engine.policy.lineage import UNFORKED, Lineage, WeightsId
from engine.policy.schedule import InFlight
from engine.spec.facts import FailureClass, Phase
from engine.weights.port import BufferId, DeltaManifest, WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    to: Address
    message: Message


# ── a rollout's body ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSequences:
    """A sample with progress goes on from there, by re-prefill; the others begin again. Each task says on which weights
    (`exact`), where a trajectory keeps its version."""

    tasks: tuple[GroupTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallWeights:
    """Answered by `WeightsInstalled` or `InstallRefused`."""

    manifest: WeightManifest
    payload: object
    in_flight: InFlight = "drain"
    """What runs: nothing does (drain), it goes on on its own weights (beside), with its KV cache thrown away and
    recomputed by the new weights (reprefill), or on the cache as it is (keep)."""
    keeps: tuple[WeightsId, ...] = ()
    """Weights that must not be overwritten: something runs on them, or is about to."""
    over: WeightsId | None = None
    """Weights in use that are overwritten: what runs on them goes on on the new ones. None: with one slot those
    that are there, else some that nothing runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSequences:
    """Abort these; they never come back as trajectories. With `reports` answered by `ProgressReported(is_stopped)`,
    which leaves out those that had ended already: they come as trajectories."""

    groups: tuple[HeldGroup, ...]
    reports: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverSequences:
    """Stop these and send the host one `SequencesHandedOver` for the group; it may come for their KV cache if the
    engine can export it. Samples that have ended meanwhile come as trajectories instead."""

    group: HeldGroup
    """`lease` is the one under which they go on."""
    host: int
    host_incarnation: int
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSequences:
    """Go on with what another replica handed over, on its KV cache where that comes and fits, else by re-prefill."""

    handed: SequencesHandedOver


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProgress:
    """Say what these said since data heard of them. Answered by `ProgressReported`."""

    heard: tuple[HeardUpTo, ...]


# ── data's body ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Append these records to the log and sync it to disk, then answer `Persisted`. Once a snapshot is written, whole
    or not at all, the records before it are needed no more."""

    serial: int
    """Of the last record."""
    records: tuple[Record, ...]
    snapshot: DataSnapshot | None = None
    """The state with these records applied."""


# ── a relay's body ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchWeights:
    """Take over what the trainer offers, and have it in a buffer from its first chunk on. Answered by `ChunkHashed` for
    every chunk of `chunk_bytes`, and then, if the manifest has no hashes, by `WeightsHashed`; or by `FetchFailed`."""

    arrival: int
    manifest: WeightManifest
    payload: object
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBuffer:
    """Make room for a buffer that another relay will send; `ChunkHashed` for each chunk that comes. One with another
    hash than its sender or these hashes say is not kept."""

    arrival: int
    buffer_id: BufferId
    num_bytes: int
    chunk_bytes: int
    chunk_hashes: tuple[str, ...]
    """Empty: they are told when all of it has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardChunk:
    to: int
    """A host."""
    reach: object
    buffer_id: BufferId
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembleWeights:
    """Every chunk is here: apply the deltas of `path` to a copy of its base, or with an empty path take the whole as
    it came. Answered by `BufferHashed`."""

    arrival: int
    manifest: WeightManifest
    path: tuple[DeltaManifest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDelta:
    """Answered by `DeltaMade`. Both versions stay readable until then, dropped or not."""

    weights: WeightsId
    base: WeightsId
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SealWeights:
    """Take the sha256 of a version, when nothing waits. Answered by `WeightsSealed`, unless it is dropped before."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWeights:
    """Send `WeightsServed` with the bytes of this version."""

    to: Address
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class DropBuffer:
    """The whole of a version, or one of its deltas."""

    buffer_id: BufferId


# ── the trainer's body ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishWeights:
    """Copy the weights as they are now and offer the copy to the relay. The only stall that the trainer has."""

    weights: WeightsId
    pinned: bool
    to: Address = RELAY


@dataclass(frozen=True, slots=True, kw_only=True)
class RepublishWeights:
    """Offer the copy made before once more."""

    weights: WeightsId
    pinned: bool
    to: Address = RELAY


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetWeights:
    """The relay has it, or a newer one: the copy may go."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOn:
    """Answered by `BatchTrained`."""

    step: int
    groups: tuple[CompleteGroup, ...]
    lineage: Lineage = UNFORKED
    """Tells how stale each trajectory is: `lineage.staleness(weights, at=step - 1)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Answered by `CheckpointWritten` or `CheckpointFailed`."""

    step: int
    progress: DataProgress


# ── the manager's body ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPart:
    """Make sure that no process of this incarnation is left."""

    part: Address
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPart:
    """A replica or a relay begins empty, data from its log, the trainer from the newest checkpoint that verifies."""

    part: Address
    incarnation: int
    hosts: tuple[str, ...] = ()
    """Of each of its processes; none: wherever the body likes."""
    relay: int | None = None
    """Of a replica: the one on its host. None: as its plan has it."""


# ── the driver's body, which also ends and starts the environment's worker ────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterPhase:
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceReady:
    num_replicas: int
    num_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceSize:
    """A resize that was asked for has come true."""

    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """A request from outside has come true, or another one has taken its place."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    outcome: Literal["succeeded", "failed", "paused"]
    failure_class: FailureClass | None = None
    message: str = ""


Effect = (
    Send
    | StartSequences
    | InstallWeights
    | StopSequences
    | HandOverSequences
    | ResumeSequences
    | ReportProgress
    | Persist
    | FetchWeights
    | OpenBuffer
    | ForwardChunk
    | AssembleWeights
    | MakeDelta
    | SealWeights
    | ServeWeights
    | DropBuffer
    | PublishWeights
    | RepublishWeights
    | ForgetWeights
    | TrainOn
    | SaveCheckpoint
    | EndPart
    | StartPart
    | EnterPhase
    | AnnounceReady
    | AnnounceSize
    | Acknowledge
    | EndRun
)
