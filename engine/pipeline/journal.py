"""Records of data's log: one for every change that must survive a restart of data.

    snapshot ── record ── record ── record …      the state is the snapshot with all records applied, in order

Invariants:
- a record holds an event, not its consequences: these are computed, deterministically;
- owners of groups are not logged: replicas report what they hold, and a new data brain listens before it grants.
"""

from dataclasses import dataclass

from engine.pipeline.failure_counts import FailureCounts
from engine.pipeline.messages.to_driver import EvaluationReported, FaultReported
from engine.pipeline.records import CompleteGroup, DataProgress, GroupKey, Trajectory
from engine.policy.lineage import Lineage, WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryTaken:
    trajectory: Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGivenUp:
    """The group's missing samples will never end."""

    key: GroupKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsDropped:
    """Groups that were ready and are too stale by now."""

    ordinals: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMade:
    step: int
    ordinals: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrained:
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept:
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerForked:
    """A new incarnation of the trainer began from this checkpoint."""

    epoch: int
    step: int
    progress: DataProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingClosed:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLoosened:
    """No relay has the evaluation's weights: any weights may answer."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationClosed:
    version: int


Record = (
    TrajectoryTaken
    | GroupGivenUp
    | GroupsDropped
    | BatchMade
    | StepTrained
    | CheckpointKept
    | TrainerForked
    | TrainingClosed
    | EvaluationLoosened
    | EvaluationClosed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken:
    """A batch: in training, or trained since the last checkpoint, to be trained again if its weights are lost."""

    step: int
    ordinals: tuple[int, ...]
    groups: tuple[CompleteGroup, ...]
    """Empty for a step so old that its prompts would be generated again."""
    progress: DataProgress
    failed: tuple[tuple[int, int], ...] = ()
    """Groups with failed samples: their ordinals, and the number of failed samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationView:
    weights: WeightsId
    any_version: bool
    answered: tuple[Trajectory, ...]
    num_given_up: int
    """Number of samples."""
    given_up: tuple[int, ...] = ()
    """Prompts that lack these samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSnapshot:
    progress: DataProgress
    num_rolled_back: int
    trained_version: int
    checkpointed: int
    lineage: Lineage
    first_version: int
    unfinished: tuple[tuple[Trajectory, ...], ...]
    """Trajectories of incomplete groups."""
    ready: tuple[CompleteGroup, ...]
    batch: StepTaken | None
    history: tuple[StepTaken, ...]
    evaluations: tuple[EvaluationView, ...]
    reports: tuple[EvaluationReported | FaultReported, ...]
    """Reports of finished evaluations, sent again after a recovery."""
    is_over: bool
    failures: FailureCounts
    num_ended_groups: int
    num_filtered_in_a_row: int

    @property
    def num_trajectories(self) -> int:
        batches = [*self.history, *([] if self.batch is None else [self.batch])]
        groups = [*self.ready, *(group for batch in batches for group in batch.groups)]
        loose = [*self.unfinished, *(evaluation.answered for evaluation in self.evaluations)]
        return sum(len(group.trajectories) for group in groups) + sum(map(len, loose))
