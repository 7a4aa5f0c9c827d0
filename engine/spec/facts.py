"""Facts: the engine's news about an attempt. Past participles, each stored once.

Invariants:
- `seq` counts 1, 2, 3, … within an attempt with no gap; a fact is never changed after it was spooled;
- a fact with an old fence has no effect: the control plane answers 409 and the driver stops.
"""

from typing import Annotated, Literal

from pydantic import Field

from engine.spec.checkpoint_manifest import CheckpointAddress
from engine.spec.strict import BigCount, BigOrdinal, Count, Ordinal, Strict, Text, ToldMoment, Whole

MetricName = Annotated[str, Field(pattern=r"^[a-z0-9_]+(/[a-z0-9_]+)*$", max_length=100)]
MAX_TRACED = 2_048
MAX_SPANS = 500
MAX_LINES = 200
LONGEST_LINE = 1_000  # a fact of the most and the longest is still smaller than a body may be
LongText = Annotated[Text, Field(max_length=100_000)]
Outcome = Literal["rewarded", "cut", "untrusted", "timeout", "error"]
LogLevel = Literal["debug", "info", "warning", "error"]
Phase = Literal["provisioning", "loading_weights", "evaluating", "training", "checkpointing", "finalizing"]
FailureClass = Literal[
    "user_code", "reward", "config", "data", "capacity", "memory", "infrastructure", "platform", "timeout", "budget"
]


class DriverStarted(Strict):
    type: Literal["driver_started"] = "driver_started"
    host: Annotated[Text, Field(max_length=255)]
    pid: Count


class PhaseChanged(Strict):
    type: Literal["phase_changed"] = "phase_changed"
    phase: Phase


class PipelineReady(Strict):
    """Every actor is placed and holds weights: the job is running from here on."""

    type: Literal["pipeline_ready"] = "pipeline_ready"
    num_replicas: Count
    num_parameters: BigCount


class StepTrained(Strict):
    """One step: a batch trained. Metric names are the series of the page; steps count from 1."""

    type: Literal["step_trained"] = "step_trained"
    step: Ordinal
    metrics: dict[MetricName, float] = Field(max_length=200)


class Evaluated(Strict):
    """The held-out prompts answered by the weights of one version."""

    type: Literal["evaluated"] = "evaluated"
    version: BigCount
    num_prompts: Count
    reward_mean: float
    reward_std: float = Field(ge=0)
    """Of the prompts' rewards about their mean; 0 where there is one prompt."""
    length_mean: float


class PromptsAnswered(Strict):
    """The progress of one version's evaluation: told while it lasts, about once a second, and at its end."""

    type: Literal["prompts_answered"] = "prompts_answered"
    version: BigCount
    num_answered: int = Field(ge=0, le=65_536)
    """Have their end: an answer, or the word that there will be none."""
    num_prompts: int = Field(ge=1, le=65_536)


class TokenTrace(Strict):
    """The first tokens of a response, position by position."""

    token_ids: list[Whole] = Field(max_length=MAX_TRACED)
    logprobs: list[float] = Field(max_length=MAX_TRACED)
    """By the policy that wrote each; 0 for an environment's words."""
    versions: list[Whole] = Field(max_length=MAX_TRACED)
    written: list[bool] = Field(max_length=MAX_TRACED)
    """By the model; false: an environment's words."""


class TrajectorySample(Strict):
    prompt_ordinal: BigCount
    sample: Count
    version: BigCount
    staleness: Count
    num_tokens: Count
    reward: float
    advantage: float
    outcome: Outcome = "rewarded"
    """`cut`: it reached the longest length allowed. `untrusted`: the environment doubts the reward, and nothing was
    learned from it. `timeout`, `error`: there is no reward, and `remark` says why."""
    prompt: LongText
    response: LongText
    remark: LongText = ""
    trace: TokenTrace | None = None


class TrajectoriesSampled(Strict):
    """A few of a step's trajectories, chosen to be read."""

    type: Literal["trajectories_sampled"] = "trajectories_sampled"
    step: Ordinal
    trajectories: list[TrajectorySample] = Field(max_length=32)


class CheckpointSaved(Strict):
    """`uri` holds a whole checkpoint: its manifest was written last and read back."""

    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: Count
    version: BigCount
    uri: CheckpointAddress
    manifest_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    num_bytes: BigCount
    code_version: Annotated[Text, Field(max_length=80)] = ""
    """Of the engine that made it."""


class FaultDetected(Strict):
    type: Literal["fault_detected"] = "fault_detected"
    component: Annotated[Text, Field(max_length=100)]
    message: LongText
    action: LongText


class Span(Strict):
    doing: Literal["decode", "prefill", "environment", "weights", "move", "idle"]
    start_s: float = Field(le=0)
    """Before the fact's own time, hence negative."""
    end_s: float = Field(le=0)


class ReplicaState(Strict):
    replica: Count
    incarnation: Count
    version: Whole
    kv_used: float
    num_running: Count
    num_waiting: Count
    num_with_environment: Count
    num_prefilled: BigCount
    num_decoded: BigCount
    spans: list[Span] = Field(max_length=MAX_SPANS)


class ReplicasObserved(Strict):
    """The activity of replicas since the fact of this kind before. Of very many replicas, the first ones."""

    type: Literal["replicas_observed"] = "replicas_observed"
    replicas: list[ReplicaState] = Field(max_length=64)


class LogLine(Strict):
    at: ToldMoment
    level: LogLevel
    message: Annotated[Text, Field(max_length=LONGEST_LINE)]


class LogLines(Strict):
    """Lines of one component, oldest first. Those beyond its rate were dropped where they were written."""

    type: Literal["log_lines"] = "log_lines"
    component: Annotated[str, Field(pattern=r"^[a-z]+(-[0-9]+)?$", max_length=60)]
    """`driver`, `trainer`, `data`, `environment`, `rollout-0`, `relay-1`, …"""
    lines: list[LogLine] = Field(max_length=MAX_LINES)
    num_dropped: Count = 0
    """Since the fact of this component before."""


class RequestAcknowledged(Strict):
    type: Literal["request_acknowledged"] = "request_acknowledged"
    request_id: Annotated[Text, Field(max_length=64)]


class ReplicasResized(Strict):
    """The run goes on with so many replicas; nothing of the others is left."""

    type: Literal["replicas_resized"] = "replicas_resized"
    replicas: Ordinal


class RunFinished(Strict):
    """The last fact of an attempt."""

    type: Literal["run_finished"] = "run_finished"
    outcome: Literal["succeeded", "failed", "cancelled", "paused"]
    failure_class: FailureClass | None = None
    message: LongText = ""
    ledger: dict[Annotated[Text, Field(max_length=40)], BigCount] = Field(default_factory=dict, max_length=40)


FactBody = Annotated[
    DriverStarted
    | PhaseChanged
    | PipelineReady
    | StepTrained
    | Evaluated
    | PromptsAnswered
    | TrajectoriesSampled
    | CheckpointSaved
    | FaultDetected
    | ReplicasObserved
    | LogLines
    | RequestAcknowledged
    | ReplicasResized
    | RunFinished,
    Field(discriminator="type"),
]


class Fact(Strict):
    seq: BigOrdinal
    at: ToldMoment
    body: FactBody
