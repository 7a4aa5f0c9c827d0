"""Messages, grouped by receiver. Any of them may come late, twice, in another order, or never.

                 ReplicaSynced            BatchReady
    rollout/i ───────────────▶  data  ───────────────▶ trainer ──WeightsOffered──▶ relay
        ▲  ◀────────────────────┘  ▲ ◀────BatchWanted─────┘  ◀──VersionStored───────┘ │
        │        WorkGranted       └──ReplicaGone── manager ◀──ReplicaReported── rollout/i
        └────────────────── VersionAnnounced, WeightsServed ──────────────────────────┘

Invariants:
- rollout ⇄ data speak in states, not in changes: a `ReplicaSynced` says all that the replica holds, so a lost or
  doubled message is mended by the next one;
- what a `payload` is only the bodies know: a handle on bytes, live or simulated.
"""

from dataclasses import dataclass
from typing import Final

from engine.pipeline.records import BufferView, CompleteGroup, DataProgress, GroupKey, GroupTask, SampleKey, Trajectory
from engine.pipeline.reports import ToDriver
from engine.weights.port import WeightManifest

Address = str
DATA: Final = "data"
TRAINER: Final = "trainer"
RELAY: Final = "relay"
MANAGER: Final = "manager"
DRIVER: Final = "driver"


def rollout_address(replica: int) -> Address:
    return f"rollout/{replica}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """To every brain, now and then: time to resend what may have been lost."""


# ── to data ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSynced:
    replica: int
    incarnation: int
    serial: int
    version: int
    wants: int
    """Sequences that it could start at once."""
    holds: tuple[GroupKey, ...]
    """Groups of which it runs samples, or has some that data has not confirmed."""
    finished: tuple[Trajectory, ...]
    evaluate_at: int | None = None
    """What it was last told of this; data says it again if it differs."""
    missing_version: int | None = None
    """It was told to evaluate this version, and no relay has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGone:
    replica: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWanted:
    """Also says that every step before this one is trained."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnded:
    version: int


# ── to a rollout ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGranted:
    incarnation: int
    taken: tuple[SampleKey, ...]
    tasks: tuple[GroupTask, ...]
    evaluate_at: int | None
    """The version that this replica should hold until told otherwise; None: the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAnnounced:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsServed:
    manifest: WeightManifest
    payload: object

    @property
    def version(self) -> int:
        return self.manifest.version


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMissing:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsInstalled:
    """From its own body."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRefused:
    """From its own body: the bytes are not what their manifest says."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoriesEnded:
    """From its own body."""

    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasured:
    """From its own body, about once a second."""

    kv_used: float
    num_tokens: int
    """Generated since the start."""


# ── to a relay ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOffered:
    manifest: WeightManifest
    pinned: bool
    """Kept until released, because an evaluation wants exactly this version."""
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHashed:
    """From its own body: chunk `index` is here, and this is its hash."""

    version: int
    index: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferHashed:
    """From its own body: the hash of all chunks put together."""

    version: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsWanted:
    replica: int
    incarnation: int
    held: int
    """The version that the replica has; -1: none yet."""
    exact: int | None
    """Only this one will do; None: the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReleased:
    version: int


# ── to the trainer ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLoaded:
    """From its own body: weights and optimizer are as they were after this step."""

    step: int
    num_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReady:
    step: int
    groups: tuple[CompleteGroup, ...]
    progress: DataProgress
    """As it will be once this batch is trained; goes into the step's checkpoint."""
    buffer: BufferView


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTrained:
    """From its own body."""

    step: int
    metrics: dict[str, float]
    advantages: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """From its own body: whole, and read back."""

    step: int
    uri: str
    manifest_sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """From its own body."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStored:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRefused:
    version: int
    reason: str


# ── to the manager ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReported:
    replica: int
    incarnation: int
    version: int
    num_running: int
    kv_used: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLost:
    """From the body that watches the processes."""

    replica: int
    incarnation: int
    reason: str


ToData = ReplicaSynced | ReplicaGone | BatchWanted | TrainingEnded
ToRollout = (
    WorkGranted
    | VersionAnnounced
    | WeightsServed
    | VersionMissing
    | WeightsInstalled
    | InstallRefused
    | TrajectoriesEnded
    | LoadMeasured
)
ToRelay = WeightsOffered | ChunkHashed | BufferHashed | WeightsWanted | VersionReleased
ToTrainer = (
    TrainerLoaded | BatchReady | BatchTrained | CheckpointWritten | CheckpointFailed | VersionStored | VersionRefused
)
ToManager = ReplicaReported | ReplicaLost
Message = Tick | ToData | ToRollout | ToRelay | ToTrainer | ToManager | ToDriver
