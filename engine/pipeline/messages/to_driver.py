"""Messages to the driver: from the parts, which report to it, from the manager's body, and from outside.

Invariant: reports of one process come in their order, unless the process dies before: then the rest never comes.
"""

from dataclasses import dataclass
from typing import Final, Literal

from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.to_manager import PartLost, PartReported, PartStarved
from engine.pipeline.packed import Floats
from engine.pipeline.records import Trajectory
from engine.policy.lineage import WeightsId
from engine.spec.facts import End, FailureClass

NO_LOGPROBS: Final = Floats()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReady:
    """It holds its first weights."""

    replica: int
    incarnation: int


Doing = Literal["decode", "prefill", "environment", "weights", "move", "idle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySpan:
    """Seconds of the clock that never goes back, of the reporting process."""

    doing: Doing
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaObserved:
    """About once a second, from its body."""

    replica: int
    incarnation: int
    version: int
    observed_at: float
    """By the same clock as the spans."""
    spans: tuple[ActivitySpan, ...]
    kv_used: float
    num_running: int
    num_waiting: int
    num_with_environment: int
    num_prefilled: int
    num_decoded: int
    num_steps: int = 0
    """Of its engines, since it began; 0: not counted."""
    decode_s: float = 0.0
    """That those took, prefill and handing in included."""
    num_installs: int = 0
    install_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReady:
    num_parameters: int
    epoch: int = 0
    """This incarnation of the trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrajectory:
    """One that was chosen to be read, with what became of it. Its content is as much as is told."""

    trajectory: Trajectory
    staleness: int
    advantage: float
    group_size: int = 0
    """Samples of its question."""
    logprobs: Floats = NO_LOGPROBS
    """By the trainer, of the first tokens that the model wrote, at the weights that the step began with. None: they are
    not known."""
    end: End = "trained"
    reason: str = ""
    """For that end, where it was not trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReported:
    step: int
    metrics: dict[str, float]
    to_read: tuple[ReadTrajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesEnded:
    """From data: one of each end and reason among what never reached the trainer since the step before."""

    step: int
    to_read: tuple[ReadTrajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReported:
    """Data says it again after a recovery; what a dead trainer's version was worth is another report than its
    successor's of the same number."""

    weights: WeightsId
    num_prompts: int
    """With at least one graded answer."""
    reward_mean: float
    """Over prompts, of the mean reward of each prompt's answers: avg@k."""
    reward_std: float
    """Of the prompts about that mean."""
    length_mean: float
    num_samples: int = 1
    """k: the answers that each prompt was asked for."""
    reward_error: float = 0.0
    """Standard error of `reward_mean`, over prompts."""
    pass_rate: float = 0.0
    """pass@k."""
    pass_error: float = 0.0
    """Its standard error, over prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStarted:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersCounted:
    """The number of held-out prompts that have their end in this evaluation. Said again after a recovery."""

    version: int
    num_answered: int
    num_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReported:
    step: int
    uri: str
    manifest_sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReported:
    component: str
    message: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReported:
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsTaken:
    """A relay shows a version from now on."""

    host: int
    weights: WeightsId
    num_bytes: int
    """Bytes that travelled to it for this version."""
    seconds: float
    """From hearing of it until it was whole."""
    by: Literal["copy", "whole", "delta"]
    """`copy`: from the trainer, to the relay that leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPaused:
    """It trains no more, and nothing that it did after `checkpointed` is written down."""

    step: int
    checkpointed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeReported:
    """Those that were to leave have left, and those that were to come have been started."""

    replicas: int
    order: int = 0
    """The order that is carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFinished:
    """This part has nothing left to do; when that ends the run, the driver's brain decides."""

    part: Literal["trainer", "data"]
    epoch: int = 0
    """The incarnation of the trainer that this is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBroken:
    """The run cannot go on."""

    failure_class: FailureClass
    message: str


# ── from the body that it shares with the manager, and from outside ───────────────────────────────────────────────
# It also hears every part's `PartReported` and `PartStarved`, and `PartLost` of the environment's worker, which has no
# manager.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStarted:
    """The manager has ordered this incarnation: what was said of the one before may not be true any more."""

    part: Address
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEnded:
    """The manager has ended this incarnation; whether another follows, `PartStarted` tells."""

    part: Address
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAsked:
    """From outside, like the next one; hearing a request twice is harmless."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeAsked:
    request_id: str
    replicas: int
    """To go on with."""


ToDriver = (
    ReplicaReady
    | ReplicaObserved
    | TrainerReady
    | StepReported
    | SamplesEnded
    | EvaluationStarted
    | EvaluationReported
    | AnswersCounted
    | CheckpointReported
    | FaultReported
    | LedgerReported
    | WeightsTaken
    | TrainerPaused
    | ResizeReported
    | PartFinished
    | RunBroken
    | PartReported
    | PartStarved
    | PartLost
    | PartStarted
    | PartEnded
    | PauseAsked
    | ResizeAsked
)
