"""Messages to data: from replicas, the manager, the trainer, and its own body."""

from dataclasses import dataclass

from engine.pipeline.records import DataProgress, Growth, HeldGroup, Move, SampleProgress, Trajectory
from engine.policy.lineage import WeightsId
from engine.process.pickling import pickled_by_values


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSynced:
    replica: int
    incarnation: int
    serial: int
    weights: WeightsId
    """Weights that fresh work starts on."""
    wants: int
    """Fresh sequences that the replica could start at once, or very soon."""
    room: int
    """Sequences on its weights that the replica could take over, even if it wants no fresh ones."""
    groups: tuple[HeldGroup, ...]
    """Samples that the replica runs, awaits from another replica, or has finished without data's confirmation."""
    finished: tuple[Trajectory, ...]
    older: tuple[WeightsId, ...] = ()
    """Other weights that the replica holds, because work on them has not ended."""
    reserved: tuple[HeldGroup, ...] = ()
    """Groups that the replica keeps room for; no samples are listed."""
    ordered_weights: WeightsId | None = None
    """The weights that data last ordered the replica to hold; None: the newest. Data repeats an order that was lost."""
    missing: WeightsId | None = None
    """Weights that the replica was ordered to hold and no relay has."""
    is_leaving: bool = False
    """The replica takes nothing more, and its running work may move away."""
    progress: tuple[SampleProgress, ...] = ()
    """Samples stopped by leaving. Repeated until, by data's account, the replica holds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressStreamed:
    """New tokens of a replica's samples since data's last acknowledgement, about once in `Plan.stream_every_s`.
    Answered by `ProgressAcknowledged`; a loss of either only costs tokens, or sending them again."""

    replica: int
    incarnation: int
    progress: tuple[SampleProgress, ...]
    """Samples reported whole, or with more than new tokens."""
    growth: tuple[Growth, ...] = ()
    serial: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGone:
    replica: int
    incarnation: int
    has_failed: bool = False
    """Its own program raised or hung at its work; False: its process or its host was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackPlanned:
    """Moves requested by the manager; data carries out those that still fit."""

    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedFrom:
    """The verified checkpoint that a trainer's incarnation began with."""

    step: int
    progress: DataProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWanted:
    """Also confirms that every step before this one is trained."""

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
    """From outside, to data and to the trainer: begin nothing more. The trainer ends its step, writes a checkpoint and
    sends `TrainerPaused`. Repeated until then."""


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
