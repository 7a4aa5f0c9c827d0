"""Records that messages are made of: keys, trajectories, groups, and the data's progress for a checkpoint."""

from dataclasses import dataclass
from typing import Final

from engine.environments.port import Blame, FailureKind, Split
from engine.pickling import pickled_by_values
from engine.pipeline.packed import Bytes, Floats, Ints, Marks
from engine.policy.lineage import NO_WEIGHTS, WeightsId

ALL_WRITTEN: Final = Marks()
NO_ROUTES: Final = Bytes()
NO_BREAKS: Final = Ints()


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
class Utterance:
    """One message behind the prompt: a stretch of the response's text, and one of its tokens."""

    is_own: bool
    """The model's; False: its environment's."""
    start: int
    num_letters: int
    """Of the text; template's marks around it are no part of it."""
    first_token: int
    num_tokens: int
    tool: str = ""
    """The tool that it calls, or answers for; empty: none."""
    arguments: str = ""
    """Of the call."""
    seconds: float | None = None
    """From the ask until the environment's answer."""
    error: str = ""
    """Of the tool or the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryContent:
    prompt_ids: Ints
    response_ids: Ints
    logprobs: Floats
    prompt_text: str
    response_text: str
    remark: str
    written: Marks = ALL_WRITTEN
    """The response tokens that the model wrote; the others are an environment's words. Empty: all."""
    routes: Bytes = NO_ROUTES
    """The experts that its first tokens met (engine/models/routes.py), the prompt's included, each when it was read for
    the first time; of a dense model none."""
    breaks: Ints = NO_BREAKS
    """The places in the response at which later segments begin: what comes there sees nothing of what was before."""
    utterances: tuple[Utterance, ...] = ()
    """In their order; none: all of it is one, by the model."""
    parts: tuple[tuple[str, float], ...] = ()
    """Of the reward, by the names that the environment gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    kind: FailureKind
    reason: str
    """For a person; nothing is decided by its words."""
    blame: Blame = "reward"
    """The class of a run that fails because of such failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRun:
    """A run of so many tokens, one after the other, by the same weights."""

    weights: WeightsId
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    key: SampleKey
    weights: WeightsId
    """The oldest among those that wrote its tokens; with a schedule that interrupts nothing, the only ones."""
    reward: float
    num_tokens: int
    runs: tuple[VersionRun, ...] = ()
    """The versions that wrote its tokens, in runs, where there was more than one; empty: all are by `weights`."""
    trusted: bool = True
    """False: the environment doubts its own reward, so nothing is learned from it."""
    cut: bool = False
    """It reached the longest length allowed."""
    num_segments: int = 1
    """More where a chat template told what was said before in another way, and the answer went on behind that."""
    environment_s: float = 0.0
    """The time that it was with its environment, all turns together."""
    queue_s: float = 0.0
    """Of that time, the part in which nobody worked on it: in line, for a core, for a free process."""
    queue_depth: int = 0
    """The most calls that its environment worker had in hand when one of its own came."""
    failure: Failure | None = None
    """The reason for no reward (the grader failed); None for a graded one."""
    content: TrajectoryContent | None = None

    @property
    def writers(self) -> tuple[WeightsId, ...]:
        return tuple(run.weights for run in self.runs) or (self.weights,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleProgress:
    """An unfinished sample: what it said so far, to go on from elsewhere."""

    key: SampleKey
    num_tokens: int
    runs: tuple[VersionRun, ...]
    """The versions that wrote them, from `since` on. Empty only without a token."""
    state: object = None
    """Data of the bodies: the turns so far and whatever else is not a token's. Brains only carry it. None where only
    what is new is told, and it has not changed."""
    said: bytes = b""
    """Its tokens from `since` on as bodies pack them, each in as many bytes as any other. Brains only carry it."""
    since: int = 0
    """Tokens that are not told again; 0: it is told whole."""
    telling: int = 0
    """Names one run of the sample on its replica: what it says under the same name only ever grows at its end."""
    mark: int = 0
    """Of `state`: a later one has a higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardUpTo:
    """What data is known to have heard of a sample that runs. Its replica tells what came after that."""

    key: SampleKey
    telling: int
    num_tokens: int = 0
    mark: int | None = None
    """Of the state that data has; None: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What samples of one replica said since data heard them last, all by the same weights: a row for each."""

    weights: WeightsId
    ordinals: Ints
    """Of their groups, which are of training."""
    samples: Ints
    tellings: Ints
    marks: Ints
    since: Ints
    num_new: Ints
    said: bytes
    """Of all of them, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    key: GroupKey
    samples: tuple[int, ...]
    lease: int = 0
    """Names one grant of this group to one replica; a later grant has a higher number, and only the highest counts."""
    exact: WeightsId | None = None
    """Only these weights may answer; None: whatever the replica holds."""
    progress: tuple[SampleProgress, ...] = ()
    """Samples that were begun elsewhere and go on from here. The others begin again."""
    is_handed_over: bool = False
    """Another replica sends the samples' state. `progress` is what to go on from if it does not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """Samples of a group under one lease."""

    key: GroupKey
    lease: int
    samples: tuple[int, ...]
    is_over: bool = False
    """Nothing of it runs any more: it only waits for data's confirmation."""
    weights: WeightsId = NO_WEIGHTS
    """Those that it runs on; none where nothing runs (any more)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Room that a host keeps for samples that may move to it."""

    key: GroupKey
    lease: int
    """The lease under which they would run there."""
    num_samples: int
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """An order to a source: this group runs elsewhere from now on, under this lease."""

    key: GroupKey
    lease: int
    host: int
    host_incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A wish of the planner: all that runs on these weights of the source goes to the host."""

    source: int
    source_incarnation: int
    host: int
    host_incarnation: int
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentLoad:
    """The load of a replica by the work on one version."""

    weights: WeightsId
    num_running: int
    kv_used: float
    """Of the whole replica's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteGroup:
    key: GroupKey
    trajectories: tuple[Trajectory, ...]

    @property
    def version(self) -> int:
        return min(trajectory.weights.version for trajectory in self.trajectories)


Intervals = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProgress:
    """The data's progress in a checkpoint: a set of ordinals, never a counter."""

    ended: Intervals = ()
    """Half-open intervals of prompt ordinals that have their end."""
    ledger: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferView:
    num_ready: int
    num_in_progress: int
    num_tokens_saved: int = 0
    """Since the start: tokens of unfinished samples that went on elsewhere when their replica was lost or left."""
    num_tokens_lost: int = 0
    """Since the start: tokens known to data that had to be generated again."""
    num_moved: int = 0
    """Since the start: samples that changed their replica by a repack."""


pickled_by_values(WeightsId, GroupKey, SampleKey, VersionRun, TrajectoryContent, Trajectory, CompleteGroup, HeldGroup)
pickled_by_values(SampleProgress, Growth, GroupTask, Utterance)
