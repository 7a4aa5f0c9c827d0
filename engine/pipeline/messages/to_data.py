"""Messages to data: from replicas, the manager, the trainer, and its own body."""

from dataclasses import dataclass

from engine.pickling import pickled_by_values
from engine.pipeline.records import DataProgress, Growth, HeldGroup, Move, SampleProgress, Trajectory
from engine.policy.lineage import WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSynced:
    replica: int
    incarnation: int
    serial: int
    weights: WeightsId
    """Those that fresh work starts on."""
    wants: int
    """Fresh sequences that it could start at once, or very soon."""
    room: int
    """Sequences of the weights that it holds that it could take over, although it may want no fresh ones."""
    groups: tuple[HeldGroup, ...]
    """Samples that it runs, awaits from another replica, or has finished without data's confirmation."""
    finished: tuple[Trajectory, ...]
    beside: tuple[WeightsId, ...] = ()
    """Other weights that it holds, since what began on them has not ended."""
    reserved: tuple[HeldGroup, ...] = ()
    """Groups that it keeps room for; no samples are listed."""
    told_to_hold: WeightsId | None = None
    """These weights, until told otherwise; None: the newest. Data says it again if it is not what data told last."""
    missing: WeightsId | None = None
    """It was told to hold these weights, and no relay has them."""
    is_leaving: bool = False
    """It takes nothing more, and what it runs may move away."""
    progress: tuple[SampleProgress, ...] = ()
    """Leaving at once: what it has stopped. Said again until it holds nothing in data's eyes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressStreamed:
    """What a replica's samples said since data heard of them last, about once in `Plan.stream_every_s`. Answered by
    `ProgressHeard`; losing either only costs tokens, or telling them once more."""

    replica: int
    incarnation: int
    progress: tuple[SampleProgress, ...]
    """Of samples that are told whole, or of which more than tokens is new."""
    growth: tuple[Growth, ...] = ()
    serial: int = 0


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
    weights: WeightsId
    """The weights that the last step made."""
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

pickled_by_values(ReplicaSynced, ProgressStreamed)
