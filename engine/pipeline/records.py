"""What messages are made of: keys, trajectories, groups, and what a checkpoint remembers of the data."""

from dataclasses import dataclass

from engine.environments.port import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    ordinal: int
    evaluation: int | None = None
    """The version whose evaluation asks; None: a prompt of training."""

    @property
    def split(self) -> Split:
        return "train" if self.evaluation is None else "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleKey:
    group: GroupKey
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryContent:
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_text: str
    response_text: str
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    key: SampleKey
    version: int
    """The oldest version among its tokens; with a draining schedule, the only one."""
    reward: float
    num_tokens: int
    cut: bool = False
    """It reached the longest length allowed."""
    failure: str = ""
    """Why there is no reward (the grader failed); empty for a graded one."""
    content: TrajectoryContent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    key: GroupKey
    samples: tuple[int, ...]
    exact_version: int | None = None
    """Evaluation: only these weights may answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteGroup:
    key: GroupKey
    trajectories: tuple[Trajectory, ...]
    ready_at: float

    @property
    def version(self) -> int:
        return min(trajectory.version for trajectory in self.trajectories)


Intervals = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProgress:
    """What a checkpoint remembers of the data: a set of ordinals, never a counter."""

    ended: Intervals = ()
    """Half-open intervals of prompt ordinals that have their end."""
    ledger: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferView:
    num_ready: int
    num_in_progress: int
