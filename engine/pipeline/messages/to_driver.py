"""Messages to the driver: reports of the parts, from the manager's body, and from outside.

Invariant: reports of one process arrive in order; if the process dies, the rest never arrives.
"""

from dataclasses import dataclass
from typing import Final, Literal

from engine.pipeline.failure_counts import NO_FAILURES, FailureCounts
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.to_manager import PartLost, PartReported, PartStarved
from engine.pipeline.packed import Floats
from engine.pipeline.records import Trajectory
from engine.policy.lineage import WeightsId
from engine.spec.causes import PlatformCause, check_cause
from engine.spec.facts import End, FailureClass

NO_LOGPROBS: Final = Floats()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReady:
    """The replica holds its first weights."""

    replica: int
    incarnation: int


Doing = Literal["decode", "prefill", "environment", "weights", "move", "idle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySpan:
    """Seconds on the monotonic clock of the reporting process."""

    doing: Doing
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaObserved:
    """From the replica's body, about once a second."""

    replica: int
    incarnation: int
    version: int
    observed_at: float
    """On the same clock as the spans."""
    spans: tuple[ActivitySpan, ...]
    kv_used: float
    num_running: int
    num_waiting: int
    num_with_environment: int
    num_prefilled: int
    num_decoded: int
    num_steps: int = 0
    """Steps of its engines since the start; 0: not counted."""
    decode_s: float = 0.0
    """Duration of these steps, prefill and submission included."""
    num_installs: int = 0
    install_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReady:
    num_parameters: int
    epoch: int = 0
    """The trainer's incarnation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrajectory:
    """A trajectory chosen for people to read, with its outcome. Its content is cut to what is sent."""

    trajectory: Trajectory
    staleness: int
    advantage: float
    group_size: int = 0
    """Samples of its prompt."""
    logprobs: Floats = NO_LOGPROBS
    """The trainer's log-probs of the first tokens that the model wrote, at the weights before the step. Empty:
    unknown."""
    end: End = "trained"
    reason: str = ""
    """Reason for the end, unless it is "trained"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReported:
    step: int
    metrics: dict[str, float]
    to_read: tuple[ReadTrajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesEnded:
    """From data: a sample of each end and reason, among those that ended untrained since the step before."""

    step: int
    to_read: tuple[ReadTrajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReported:
    """Sent again after a recovery. A dead trainer's version and its successor's version of the same number have
    separate reports."""

    weights: WeightsId
    num_prompts: int
    """Prompts with at least one graded answer."""
    reward_mean: float
    """avg@k: mean over prompts of the mean reward of each prompt's answers."""
    reward_std: float
    """Standard deviation of the prompts' means."""
    length_mean: float
    num_samples: int = 1
    """k: the answers requested for each prompt."""
    reward_error: float = 0.0
    """Standard error of `reward_mean`, over prompts."""
    pass_rate: float = 0.0
    """pass@k."""
    pass_error: float = 0.0
    """Standard error of `pass_rate`, over prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStarted:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersCounted:
    """The number of held-out prompts that have ended in this evaluation. Sent again after a recovery."""

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
    failures: FailureCounts = NO_FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsTaken:
    """A relay has a whole version, and serves it from now on."""

    host: int
    weights: WeightsId
    num_bytes: int
    """Bytes sent to the relay for this version."""
    seconds: float
    """From the announcement until the version was whole."""
    by: Literal["copy", "whole", "delta"]
    """`copy`: from the trainer, to the relay that leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPaused:
    """The trainer trains no more. No step after `checkpointed` is in a checkpoint."""

    step: int
    checkpointed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeReported:
    """All leaving replicas have left, and all new ones have been started."""

    replicas: int
    order: int = 0
    """The order that is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFinished:
    """This part has nothing left to do; the driver's brain decides when the run ends."""

    part: Literal["trainer", "data"]
    epoch: int = 0
    """The trainer's incarnation that this refers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBroken:
    """The run cannot continue."""

    failure_class: FailureClass
    message: str
    cause: PlatformCause | None = None

    def __post_init__(self) -> None:
        check_cause(self.failure_class, self.cause)


# ── from the body that it shares with the manager, and from outside ───────────────────────────────────────────────
# The driver also takes every part's `PartReported` and `PartStarved`, and `PartLost` of environment workers, which no
# manager watches.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStarted:
    """The manager has ordered this incarnation: reports of the one before may be outdated."""

    part: Address
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEnded:
    """The manager has ended this incarnation; if another follows, `PartStarted` announces it."""

    part: Address
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAsked:
    """From outside, like `ResizeAsked`; a repeated request is harmless."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeAsked:
    request_id: str
    replicas: int
    """The new number of replicas."""


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
