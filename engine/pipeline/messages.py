"""Messages, grouped by receiver. Any of them may come late, twice, in another order, or never.

                 ReplicaSynced            BatchReady
    rollout/i ───────────────▶  data  ───────────────▶ trainer ──WeightsOffered──▶ relay
        ▲  ◀────────────────────┘ ▲ ▲ ◀────BatchWanted─────┘  ◀──VersionStored───────┘ │
        │        WorkGranted      │ └──ReplicaGone, RepackPlanned── manager ◀──…Reported── every part
        │                         └── SequencesHandedOver: rollout/i ──▶ rollout/j
        └────────────────── VersionAnnounced, WeightsServed ───────────────────────────┘

Invariants:
- rollout ⇄ data speak in states, not in changes: a `ReplicaSynced` says all that the replica holds, so a lost or
  doubled message is mended by the next one;
- data alone says who owns a group; a lease names each grant, and a higher lease ends every lower one;
- what a `payload` or a `state` is only the bodies know: a handle on bytes, live or simulated.

Longer than most: it is the list of everything that is said.
"""

# Over budget: a list of messages, grouped by receiver; two files would hide who says what to whom.

from dataclasses import dataclass
from typing import Final

from engine.pipeline.records import (
    BufferView,
    CompleteGroup,
    DataProgress,
    GroupKey,
    GroupTask,
    HandOver,
    HeldGroup,
    Move,
    Reservation,
    ResidentLoad,
    SampleKey,
    SampleProgress,
    Trajectory,
)
from engine.pipeline.relay_messages import RelayToRollout, RelayToTrainer, ToRelay, relay_address
from engine.pipeline.reports import ToDriver
from engine.policy.lineage import UNFORKED, Lineage, WeightsId

Address = str
DATA: Final = "data"
TRAINER: Final = "trainer"
RELAY: Final = relay_address(0)
"""The relay that leads until another is elected."""
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
    weights: WeightsId
    """Those that fresh work starts on."""
    wants: int
    """Sequences that it could start at once."""
    room: int
    """Sequences of the weights that it holds that it could take over, although it may want no fresh ones."""
    holds: tuple[HeldGroup, ...]
    """What it runs, awaits from another replica, or has finished without data's confirmation."""
    finished: tuple[Trajectory, ...]
    beside: tuple[WeightsId, ...] = ()
    """Other weights that it holds, since what began on them has not ended."""
    reserved: tuple[HeldGroup, ...] = ()
    """What it keeps room for; no samples are listed."""
    hold: WeightsId | None = None
    """What it was last told of this; data says it again if it differs."""
    missing: WeightsId | None = None
    """It was told to hold these weights, and no relay has them."""
    is_leaving: bool = False
    """It takes nothing more, and what it runs may move away."""
    progress: tuple[SampleProgress, ...] = ()
    """Leaving at once: what it has stopped. Said again until it holds nothing in data's eyes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressStreamed:
    """What a replica's samples said so far, about once in `Plan.stream_every_s`. Losing one only costs tokens."""

    replica: int
    incarnation: int
    progress: tuple[SampleProgress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGone:
    replica: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackPlanned:
    """Wishes of the manager; data fulfils those that still fit."""

    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedFrom:
    """The verified checkpoint that a trainer's incarnation began with."""

    step: int
    progress: DataProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWanted:
    """Also says that every step before this one is trained."""

    step: int
    epoch: int = 0
    """The trainer's incarnation."""
    checkpointed: int = 0
    """The newest step with a verified checkpoint: nothing before it will be trained again."""
    resumed: ResumedFrom | None = None
    """None: this incarnation began where the attempt did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnded:
    version: int
    epoch: int = 0
    checkpointed: int = 0
    resumed: ResumedFrom | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequested:
    """From outside, to data and to the trainer: begin nothing more. The trainer ends its step, has it written down, and
    says `TrainerPaused`. Said again until it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """From its own body: every record up to this serial number survives the death of the process."""

    serial: int


# ── to a rollout ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGranted:
    incarnation: int
    taken: tuple[SampleKey, ...] = ()
    tasks: tuple[GroupTask, ...] = ()
    hold: WeightsId | None = None
    """The weights that this replica should hold until told otherwise; None: the newest."""
    revoked: tuple[HeldGroup, ...] = ()
    """Samples that are not its own (any more) under this lease or a lower one: stop them."""
    reserved: tuple[Reservation, ...] = ()
    """All that it should keep room for; what is not listed is cancelled."""
    handovers: tuple[HandOver, ...] = ()
    is_released: bool = False
    """It is leaving, and data needs nothing more of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencesHandedOver:
    """From another replica's body: the samples of one group, to go on under this lease. The payload is their KV cache
    where the engine can export it."""

    incarnation: int
    """The host's."""
    key: GroupKey
    lease: int
    weights: WeightsId
    progress: tuple[SampleProgress, ...]
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """From the manager: take nothing more, let others go on with the rest, and say when nothing is left. What has not
    moved by then is handed to data as tokens."""

    incarnation: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsInstalled:
    """From its own body."""

    version: int
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRefused:
    """From its own body: the bytes are not what their manifest says."""

    version: int
    reason: str
    is_gone: bool = False
    """They were dropped because a newer version is there, which is nobody's fault."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoriesEnded:
    """From its own body."""

    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReported:
    """From its own body, in answer to `ReportProgress` or `StopSequences`: samples that still ran, as they are."""

    progress: tuple[SampleProgress, ...]
    is_stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasured:
    """From its own body, about once a second."""

    kv_used: float
    num_tokens: int
    """Generated since the start."""
    kv_by_weights: tuple[tuple[WeightsId, float], ...] = ()
    """What each version's work takes of the cache, where there may be several."""


# ── to the trainer ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLoaded:
    """From its own body: weights and optimizer are as they were after this step."""

    step: int
    num_parameters: int
    progress: DataProgress | None = None
    """What the checkpoint remembers of the data; None: it began where the attempt did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReady:
    step: int
    groups: tuple[CompleteGroup, ...]
    progress: DataProgress
    """As it will be once this batch is trained; goes into the step's checkpoint."""
    buffer: BufferView
    epoch: int = 0
    """For this incarnation of the trainer."""
    lineage: Lineage = UNFORKED
    """Tells how stale each trajectory is: `lineage.staleness(weights, at=step - 1)`."""


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


# ── to the manager ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReported:
    replica: int
    incarnation: int
    version: int
    """The one that fresh work starts on."""
    num_running: int
    """On all versions, like `kv_used`."""
    kv_used: float
    num_tokens: int
    epoch: int = 0
    beside: tuple[ResidentLoad, ...] = ()
    """What of it is of other versions, each with its share."""
    has_free_slot: bool = False
    """It could take other weights at once."""

    @property
    def weights(self) -> WeightsId:
        return WeightsId(self.epoch, self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReported:
    """A heartbeat of any part that is no replica."""

    part: Address
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLost:
    """From the body that watches the processes."""

    part: Address
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsUpdated:
    """From the trainer: the moment to look for tails, since what runs is of an old version now."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOrdered:
    """From outside: this replica's device will be taken away."""

    replica: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeOrdered:
    """From outside: the replicas below this number stay or come back, the others leave."""

    replicas: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLeft:
    """It has handed over everything."""

    replica: int
    incarnation: int


ToData = (
    ReplicaSynced
    | ProgressStreamed
    | ReplicaGone
    | RepackPlanned
    | BatchWanted
    | TrainingEnded
    | PauseRequested
    | Persisted
)
ToRollout = (
    WorkGranted
    | SequencesHandedOver
    | LeaveRequested
    | RelayToRollout
    | WeightsInstalled
    | InstallRefused
    | TrajectoriesEnded
    | ProgressReported
    | LoadMeasured
)
ToTrainer = (
    TrainerLoaded | BatchReady | BatchTrained | CheckpointWritten | CheckpointFailed | PauseRequested | RelayToTrainer
)
ToManager = ReplicaReported | PartReported | PartLost | WeightsUpdated | LeaveOrdered | ResizeOrdered | ReplicaLeft
Message = Tick | ToData | ToRollout | ToRelay | ToTrainer | ToManager | ToDriver
