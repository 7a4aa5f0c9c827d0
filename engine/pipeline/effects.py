"""Effects: what a brain wants done. `Send` goes over the network; every other one is for the brain's own body.

Invariant: an effect is plain data. Carrying it out twice must be as harmless as the brain's messages are.
"""

from dataclasses import dataclass

from engine.pipeline.messages import Address, Message
from engine.pipeline.records import CompleteGroup, DataProgress, GroupTask
from engine.weights.port import WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    to: Address
    message: Message


# ── a rollout's body ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSequences:
    tasks: tuple[GroupTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallWeights:
    """Answered by `WeightsInstalled` or `InstallRefused`."""

    manifest: WeightManifest
    payload: object


# ── a relay's body ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchWeights:
    """Answered by `ChunkHashed` for every chunk, then `BufferHashed`."""

    manifest: WeightManifest
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWeights:
    """Send `WeightsServed` with the bytes of this version."""

    to: Address
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropWeights:
    version: int


# ── the trainer's body ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishWeights:
    """Copy the weights as they are now and offer the copy to the relay. The only stall that the trainer has."""

    version: int
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RepublishWeights:
    """Offer the copy made before once more."""

    version: int
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetWeights:
    """The relay has it, or a newer one: the copy may go."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOn:
    """Answered by `BatchTrained`."""

    step: int
    groups: tuple[CompleteGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Answered by `CheckpointWritten` or `CheckpointFailed`."""

    step: int
    progress: DataProgress


# ── the manager's body ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReplica:
    """Make sure that no process of this incarnation is left."""

    replica: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReplica:
    replica: int
    incarnation: int


Effect = (
    Send
    | StartSequences
    | InstallWeights
    | FetchWeights
    | ServeWeights
    | DropWeights
    | PublishWeights
    | RepublishWeights
    | ForgetWeights
    | TrainOn
    | SaveCheckpoint
    | EndReplica
    | StartReplica
)
