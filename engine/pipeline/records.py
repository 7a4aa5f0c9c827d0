"""Records used in messages: keys, trajectories, groups, and data's progress for a checkpoint."""

from dataclasses import dataclass
from typing import Final

from engine.environments.port import Blame, FailureKind, Split
from engine.pipeline.packed import Bytes, Floats, Ints, Marks
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.process.pickling import pickled_by_values

ALL_WRITTEN: Final = Marks()
NO_ROUTES: Final = Bytes()
NO_BREAKS: Final = Ints()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    ordinal: int
    evaluation: int | None = None
    """The version that the group evaluates; None: a training prompt."""

    @property
    def split(self) -> Split:
        return "train" if self.evaluation is None else "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleKey:
    group: GroupKey
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """One message after the prompt: a span of the response's text, and a span of its tokens."""

    is_own: bool
    """True: the model's; False: its environment's."""
    start: int
    num_letters: int
    """Of the text, without the chat template's marks."""
    first_token: int
    num_tokens: int
    tool: str = ""
    """The tool that is called, or that answers; empty: none."""
    arguments: str = ""
    """Arguments of the call."""
    seconds: float | None = None
    """From the call until the environment's answer."""
    error: str = ""
    """Error of the tool or the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryContent:
    prompt_ids: Ints
    response_ids: Ints
    logprobs: Floats
    prompt_text: str
    response_text: str
    remark: str
    written: Marks = ALL_WRITTEN
    """Marks the response tokens that the model wrote; the environment wrote the others. Empty: the model wrote all."""
    routes: Bytes = NO_ROUTES
    """The experts of the first tokens (engine/models/routes.py), prompt included, each as routed when first read; empty
    for a dense model, or where they are unknown."""
    routes_since: int = 0
    """From a replica: bytes of routes that are left out because data has them. Data joins both."""
    sample_run: int = 0
    """From a replica: the run of the sample under which data has them."""
    breaks: Ints = NO_BREAKS
    """Positions in the response at which later segments begin: a segment does not attend to earlier ones."""
    utterances: tuple[Utterance, ...] = ()
    """In order; empty: the whole response is one message by the model."""
    parts: tuple[tuple[str, float], ...] = ()
    """Parts of the reward, by the environment's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    kind: FailureKind
    reason: str
    """Text for people; no decision depends on it."""
    blame: Blame = "reward"
    """Failure class of a run that fails because of such failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRun:
    """Consecutive tokens by the same weights."""

    weights: WeightsId
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    key: SampleKey
    weights: WeightsId
    """The oldest weights that wrote its tokens; the only ones if the schedule interrupts nothing."""
    reward: float
    num_tokens: int
    runs: tuple[VersionRun, ...] = ()
    """Runs of tokens by version, if there were several; empty: all tokens are by `weights`."""
    trusted: bool = True
    """False: the environment does not vouch for the reward, so the trainer learns nothing from it."""
    cut: bool = False
    """The response reached the length limit."""
    num_segments: int = 1
    """Above 1 where the chat template re-rendered earlier messages differently and the answer continued after that."""
    environment_s: float = 0.0
    """Time spent in the environment, over all turns."""
    queue_s: float = 0.0
    """The part of that time spent queued: for its turn, a core, or a free process."""
    queue_depth: int = 0
    """The most calls in its environment worker's hands when one of this trajectory's calls arrived."""
    failure: Failure | None = None
    """Why there is no reward (the grader failed); None for a graded trajectory."""
    content: TrajectoryContent | None = None

    @property
    def writers(self) -> tuple[WeightsId, ...]:
        return tuple(run.weights for run in self.runs) or (self.weights,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleProgress:
    """An unfinished sample: its tokens so far, for another replica to resume."""

    key: SampleKey
    num_tokens: int
    runs: tuple[VersionRun, ...]
    """Runs by version, from `since` on. Empty only without tokens."""
    state: object = None
    """Opaque to brains: the turns so far and other state of bodies that is not per token. None in an increment whose
    state has not changed."""
    packed_tokens: bytes = b""
    """Opaque to brains: the tokens from `since` on, packed at a fixed number of bytes each."""
    packed_routes: bytes = b""
    """Opaque to brains: a mixture's routes from byte `routes_since` on."""
    num_route_bytes: int = 0
    """Bytes of all routes so far."""
    since: int = 0
    """Tokens that are left out because data has them; 0: the progress is whole."""
    routes_since: int = 0
    """Bytes of routes that are left out because data has them."""
    sample_run: int = 0
    """Numbers one run of the sample on its replica; under the same number tokens and routes are only ever appended."""
    mark: int = 0
    """Version number of `state`: grows with every change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedProgress:
    """The acknowledged progress of a running sample. Its replica reports what came after."""

    key: SampleKey
    sample_run: int
    num_tokens: int = 0
    num_route_bytes: int = 0
    mark: int | None = None
    """Mark of the state that data has; None: data has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A replica's new tokens since data's last acknowledgement, all by the same weights; a row for each sample."""

    weights: WeightsId
    ordinals: Ints
    """Of the samples' groups, which are training groups."""
    samples: Ints
    sample_runs: Ints
    marks: Ints
    since: Ints
    num_new: Ints
    routes_since: Ints
    num_new_route_bytes: Ints
    packed_tokens: bytes
    """Tokens of all samples, concatenated."""
    packed_routes: bytes
    """Routes of all samples, concatenated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    key: GroupKey
    samples: tuple[int, ...]
    lease: int = 0
    """Numbers a grant of this group to a replica; a later grant has a higher number, and only the highest counts."""
    exact: WeightsId | None = None
    """Only these weights may answer; None: any that the replica holds."""
    progress: tuple[SampleProgress, ...] = ()
    """Samples begun elsewhere, resumed from these tokens. The others begin again."""
    is_handed_over: bool = False
    """Another replica sends the samples' state. If it does not arrive, they resume from `progress`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """Samples of a group under one lease."""

    key: GroupKey
    lease: int
    samples: tuple[int, ...]
    is_over: bool = False
    """No sample runs any more; the replica only waits for data's confirmation."""
    weights: WeightsId = NO_WEIGHTS
    """The weights of its running samples; `NO_WEIGHTS` if none run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Room that a host keeps for samples that may move to it."""

    key: GroupKey
    lease: int
    """The lease under which the samples would run there."""
    num_samples: int
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """An order to a source: the group runs on the host from now on, under this lease."""

    key: GroupKey
    lease: int
    host: int
    host_incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A request of the planner: all work on these weights of the source moves to the host."""

    source: int
    source_incarnation: int
    host: int
    host_incarnation: int
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentLoad:
    """A replica's load from work on one version."""

    weights: WeightsId
    num_running: int
    kv_used: float
    """Fraction of the replica's whole cache."""


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
    """Data's progress in a checkpoint: a set of ordinals, never a counter."""

    ended: Intervals = ()
    """Half-open intervals of prompt ordinals that have ended."""
    ledger: tuple[tuple[str, int], ...] = ()
    base_is_due: bool = False
    """The base weights, version 0, are not evaluated yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferView:
    num_ready: int
    num_in_progress: int
    num_tokens_saved: int = 0
    """Since the start: tokens of unfinished samples that another replica resumed when theirs was lost or left."""
    num_tokens_lost: int = 0
    """Since the start: tokens known to data that had to be generated again."""
    num_moved: int = 0
    """Since the start: samples that a repack moved to another replica."""


pickled_by_values(WeightsId, GroupKey, SampleKey, VersionRun, TrajectoryContent, Trajectory, CompleteGroup, HeldGroup)
pickled_by_values(SampleProgress, Growth, GroupTask, Utterance)
