"""Effects: what a brain orders. `Send` goes over the network; every other effect is for the brain's own body.

Invariant: an effect is plain data. Carrying it out twice must be as harmless as the brain's messages are.
"""
# Over budget: the effects of all brains in one list, each a few lines long.

from dataclasses import dataclass
from typing import Literal

from engine.pipeline.journal import DataSnapshot, Record
from engine.pipeline.messages.addresses import RELAY, Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_rollout import SequencesHandedOver
from engine.pipeline.records import AcknowledgedProgress, CompleteGroup, DataProgress, GroupTask, HeldGroup
from engine.policy.lineage import UNFORKED, Lineage, WeightsId
from engine.policy.schedule import InFlight
from engine.spec.causes import PlatformCause, check_cause
from engine.spec.facts import FailureClass, Phase
from engine.weights.port import BufferId, DeltaManifest, WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    to: Address
    message: Message


# ── a rollout's body ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSequences:
    """A sample with progress resumes by re-prefill; the others begin again. Each task names its weights (`exact`) where
    a trajectory keeps its version."""

    tasks: tuple[GroupTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallWeights:
    """Answered by `WeightsInstalled` or `InstallRefused`."""

    manifest: WeightManifest
    payload: object
    in_flight: InFlight = "drain"
    """Running sequences: there are none (drain), or they continue on their own weights (pin), or on the new ones
    with a recomputed (reprefill) or unchanged (keep) KV cache."""
    keeps: tuple[WeightsId, ...] = ()
    """Weights that must not be overwritten: sequences run on them, or are about to."""
    over: WeightsId | None = None
    """Weights in use to overwrite: their sequences continue on the new ones. None: with one slot the current weights,
    else some that nothing runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSequences:
    """Abort these; they never come back as trajectories. With `reports` answered by `ProgressReported(is_stopped)`,
    without samples that had ended already: those come as trajectories."""

    groups: tuple[HeldGroup, ...]
    reports: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverSequences:
    """Stop these and send the host one `SequencesHandedOver` for the group; the host may fetch the KV cache if the
    engine exports it. Samples that have ended meanwhile come as trajectories instead."""

    group: HeldGroup
    """`lease` is the one under which the host runs them."""
    host: int
    host_incarnation: int
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSequences:
    """Resume samples that another replica handed over, on their KV cache if it arrives and fits, else by re-prefill."""

    handed: SequencesHandedOver


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProgress:
    """Report the tokens of these samples that data does not have yet. Answered by `ProgressReported`."""

    acknowledged: tuple[AcknowledgedProgress, ...]


# ── data's body ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Append these records to the log and sync it to disk, then answer `Persisted`. A snapshot is written atomically;
    the records before it are not needed any more."""

    serial: int
    """Serial number of the last record."""
    records: tuple[Record, ...]
    snapshot: DataSnapshot | None = None
    """The state with these records applied."""


# ── a relay's body ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchWeights:
    """Copy the offered weights into a buffer, readable from the first chunk on. Answered by a `ChunkHashed` for each
    chunk of `chunk_bytes`, then, if the manifest has no hashes, by `WeightsHashed`; or by `FetchFailed`."""

    arrival: int
    manifest: WeightManifest
    payload: object
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBuffer:
    """Allocate a buffer that another relay will send; `ChunkHashed` for each chunk that arrives. A chunk whose hash
    differs from its sender's or from these hashes is dropped."""

    arrival: int
    buffer_id: BufferId
    num_bytes: int
    chunk_bytes: int
    chunk_hashes: tuple[str, ...]
    """Empty: the hashes follow when the whole buffer has arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardChunk:
    to: int
    """The receiving host."""
    reach: object
    buffer_id: BufferId
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembleWeights:
    """All chunks have arrived: apply the deltas of `path` to a copy of its base, or with an empty path take the whole
    version as it arrived. Answered by `BufferHashed`."""

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
    """Compute the sha256 of a version when idle. Answered by `WeightsSealed`, unless the version is dropped before."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWeights:
    """Send `WeightsServed` with the bytes of this version."""

    to: Address
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class DropBuffer:
    """Drop a whole version, or one of its deltas."""

    buffer_id: BufferId


# ── the trainer's body ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishWeights:
    """Copy the current weights and offer the copy to the relay. The copy is the trainer's only stall."""

    weights: WeightsId
    pinned: bool
    to: Address = RELAY


@dataclass(frozen=True, slots=True, kw_only=True)
class RepublishWeights:
    """Offer the existing copy again."""

    weights: WeightsId
    pinned: bool
    to: Address = RELAY


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetWeights:
    """Free the copy: the relay has this version or a newer one."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOn:
    """Answered by `BatchTrained`."""

    step: int
    groups: tuple[CompleteGroup, ...]
    lineage: Lineage = UNFORKED
    """Gives each trajectory's staleness: `lineage.staleness(weights, at=step - 1)`."""


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
    """A replica or a relay starts empty, data from its log, the trainer from the newest checkpoint that verifies."""

    part: Address
    incarnation: int
    hosts: tuple[str, ...] = ()
    """Host of each process; empty: the body chooses."""
    relay: int | None = None
    """A replica's relay, on its host. None: the plan's relay."""


# ── the driver's body, which also ends and starts environment workers ────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterPhase:
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceReady:
    num_replicas: int
    num_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceSize:
    """A requested resize is complete."""

    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """An external request is complete, or a later one has replaced it."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    outcome: Literal["succeeded", "failed", "paused"]
    failure_class: FailureClass | None = None
    message: str = ""
    cause: PlatformCause | None = None

    def __post_init__(self) -> None:
        check_cause(self.failure_class, self.cause)


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
