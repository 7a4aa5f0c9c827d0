"""Facts: events of an attempt that the engine reports. Named by past participles, each stored once.

Invariants:
- `seq` counts 1, 2, 3, … within an attempt without a gap; a spooled fact never changes;
- a fact with an old fence has no effect: the control plane answers 409 and the driver stops;
- a kind, field or value of a later release is passed over and named, so that either side can be upgraded first; a fact
  that `needs` it is refused.
"""

# Over budget: all kinds of facts are listed here, as one contract.

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import BaseModel, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from engine.spec.causes import PlatformCause
from engine.spec.checkpoint_manifest import CheckpointAddress
from engine.spec.strict import BigCount, BigOrdinal, Count, Lenient, Ordinal, ReportedMoment, Text, Whole
from engine.spec.vocabulary import names_of, needed_of, reduce_body

MetricName = Annotated[str, Field(pattern=r"^[a-z0-9_]+(/[a-z0-9_]+)*$", max_length=100)]
MAX_TRACED = 2_048
MAX_SPANS = 500
MAX_LINES = 200
LONGEST_LINE = 1_000  # MAX_LINES lines of this length still fit the largest request body
LongText = Annotated[Text, Field(max_length=100_000)]
Outcome = Literal["rewarded", "cut", "untrusted", "timeout", "error"]
End = Literal["trained", "filtered", "dropped_stale", "failed"]
MAX_TURNS = 256
MAX_PARTS = 20
LONGEST_TOKEN = 200
LogLevel = Literal["debug", "info", "warning", "error"]
Phase = Literal["provisioning", "loading_weights", "evaluating", "training", "checkpointing", "finalizing"]
FailureClass = Literal[
    "user_code", "reward", "config", "data", "capacity", "memory", "infrastructure", "platform", "timeout", "budget"
]


class DriverStarted(Lenient):
    type: Literal["driver_started"] = "driver_started"
    host: Annotated[Text, Field(max_length=255)]
    pid: Count


class PhaseChanged(Lenient):
    type: Literal["phase_changed"] = "phase_changed"
    phase: Phase


class PipelineReady(Lenient):
    """Every actor is placed and holds weights: the job is running from now on."""

    type: Literal["pipeline_ready"] = "pipeline_ready"
    num_replicas: Count
    num_parameters: BigCount


class StepTrained(Lenient):
    """One batch was trained. Metric names are the series on the job's page; steps count from 1."""

    type: Literal["step_trained"] = "step_trained"
    step: Ordinal
    metrics: dict[MetricName, float] = Field(max_length=200)
    ledger: dict[Annotated[Text, Field(max_length=40)], BigCount] = Field(default_factory=dict, max_length=40)
    """Counts of all samples of the run by their end, as data last reported them before this step; empty: unknown."""


class Evaluated(Lenient):
    """The weights of one version answered the held-out prompts."""

    type: Literal["evaluated"] = "evaluated"
    version: Count
    """The step that made these weights: a point of the evaluation's series."""
    num_prompts: Count
    reward_mean: float
    """avg@k: the mean over prompts of the mean reward of each prompt's answers."""
    reward_std: float = Field(ge=0)
    """Standard deviation of the prompts' mean rewards; 0 for a single prompt."""
    length_mean: float
    num_samples: int = Field(1, ge=1, le=65_536)
    """k: the answers requested per prompt."""
    reward_error: float = Field(0.0, ge=0)
    """Standard error of `reward_mean`, over prompts."""
    pass_rate: float | None = Field(None, ge=0, le=1)
    """pass@k: the share of prompts with an answer whose reward is at least `evaluation.pass_mark`. None: unknown."""
    pass_error: float = Field(0.0, ge=0)
    """Standard error of `pass_rate`, over prompts."""


class PromptsAnswered(Lenient):
    """The progress of one version's evaluation, sent about once a second and at its end."""

    type: Literal["prompts_answered"] = "prompts_answered"
    version: BigCount
    num_answered: int = Field(ge=0, le=65_536)
    """Prompts that are finished: all answered, or known to stay without an answer."""
    num_prompts: int = Field(ge=1, le=65_536)


class TokenTrace(Lenient):
    """The first tokens of a response, position by position."""

    token_ids: list[Whole] = Field(max_length=MAX_TRACED)
    logprobs: list[float] = Field(max_length=MAX_TRACED)
    """Log-prob of each token by the policy that generated it; 0 for tokens of the environment."""
    versions: list[Whole] = Field(max_length=MAX_TRACED)
    written: list[bool] = Field(max_length=MAX_TRACED)
    """True for tokens of the model, false for tokens of the environment."""
    texts: list[Annotated[Text, Field(max_length=LONGEST_TOKEN)]] = Field(default_factory=list, max_length=MAX_TRACED)
    """The text of each token; U+FFFD for a token that is no text by itself (part of a character). Empty: unknown."""
    trainer_logprobs: list[float] = Field(default_factory=list, max_length=MAX_TRACED)
    """Log-prob of each token by the trainer at the weights that its step began with; 0 for tokens of the environment.
    Empty: unknown, for example because the response was never trained on."""


class Turn(Lenient):
    """One message after the prompt."""

    author: Literal["model", "environment"]
    text: LongText
    first_token: Count
    """The index of the message's first token in the response."""
    num_tokens: Count
    tool: Annotated[Text, Field(max_length=200)] = ""
    """The tool that this message calls, or whose result it is; empty: none."""
    arguments: LongText = ""
    """The arguments of the call, as the model wrote them."""
    seconds: float | None = Field(default=None, ge=0)
    """How long the environment took for this message."""
    error: LongText = ""
    """The error of the tool or environment; empty: none."""


class TrajectorySample(Lenient):
    prompt_ordinal: BigCount
    sample: Count
    version: BigCount
    staleness: Count
    num_tokens: Count
    reward: float
    advantage: float
    outcome: Outcome = "rewarded"
    """`cut`: it reached the length limit. `untrusted`: the environment flagged the reward as unreliable, and nothing
    was learned from it. `timeout`, `error`: there is no reward; `remark` holds the reason."""
    prompt: LongText
    response: LongText
    remark: LongText = ""
    trace: TokenTrace | None = None
    end: End = "trained"
    reason: LongText = ""
    """Why the sample was not trained on; empty if it was."""
    group_size: Count = 0
    """Samples of the prompt; 0: unknown. The group is complete if this many samples have its prompt_ordinal."""
    turns: list[Turn] = Field(default_factory=list, max_length=MAX_TURNS)
    """The response as messages, in order; empty: a single message of the model."""
    parts: dict[Annotated[Text, Field(max_length=60)], float] = Field(default_factory=dict, max_length=MAX_PARTS)
    """The components of the reward, if the environment names any."""


class TrajectoriesSampled(Lenient):
    """Some of a step's trajectories, for display: whole groups, and one of each end and outcome that occurred."""

    type: Literal["trajectories_sampled"] = "trajectories_sampled"
    step: Ordinal
    trajectories: list[TrajectorySample] = Field(max_length=32)


class CheckpointSaved(Lenient):
    """`uri` holds a complete checkpoint: its manifest was written last and read back."""

    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: Count
    version: BigCount
    uri: CheckpointAddress
    manifest_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    num_bytes: BigCount
    code_version: Annotated[Text, Field(max_length=80)] = ""
    """The version of the engine that wrote the checkpoint."""


class FaultDetected(Lenient):
    type: Literal["fault_detected"] = "fault_detected"
    component: Annotated[Text, Field(max_length=100)]
    message: LongText
    action: LongText


class Span(Lenient):
    doing: Literal["decode", "prefill", "environment", "weights", "move", "idle"]
    start_s: float = Field(le=0)
    """Relative to the fact's own time, hence negative."""
    end_s: float = Field(le=0)


class ReplicaState(Lenient):
    replica: Count
    incarnation: Count
    version: Whole
    kv_used: float
    num_running: Count
    num_waiting: Count
    num_with_environment: Count
    num_prefilled: BigCount
    num_decoded: BigCount
    num_steps: BigCount = 0
    """Decoding steps since the incarnation began, each one token of every running sequence; 0: unknown."""
    decode_s: float = Field(default=0.0, ge=0)
    """Seconds spent in those steps, with the prefills between them."""
    num_installs: BigCount = 0
    """Weight installs since the incarnation began."""
    install_s: float = Field(default=0.0, ge=0)
    spans: list[Span] = Field(max_length=MAX_SPANS)


class ReplicasObserved(Lenient):
    """The activity of replicas since the previous fact of this kind. Of many replicas each fact holds some, in turn."""

    type: Literal["replicas_observed"] = "replicas_observed"
    replicas: list[ReplicaState] = Field(max_length=64)
    num_replicas: Count = 0
    """All replicas of the run; 0: unknown."""


class LogLine(Lenient):
    at: ReportedMoment
    level: LogLevel
    message: Annotated[Text, Field(max_length=LONGEST_LINE)]


class LogLines(Lenient):
    """Lines of one component, oldest first. The component dropped the lines beyond its rate limit."""

    type: Literal["log_lines"] = "log_lines"
    component: Annotated[str, Field(pattern=r"^[a-z]+(-[0-9]+)?$", max_length=60)]
    """`driver`, `trainer`, `data`, `environment`, `rollout-0`, `relay-1`, …"""
    lines: list[LogLine] = Field(max_length=MAX_LINES)
    num_dropped: Count = 0
    """Lines dropped since the component's previous fact."""


class RequestAcknowledged(Lenient):
    type: Literal["request_acknowledged"] = "request_acknowledged"
    request_id: Annotated[Text, Field(max_length=64)]


class ReplicasResized(Lenient):
    """The run continues with this number of replicas; the others have been removed."""

    type: Literal["replicas_resized"] = "replicas_resized"
    replicas: Ordinal


class RunFinished(Lenient):
    """The last fact of an attempt."""

    type: Literal["run_finished"] = "run_finished"
    outcome: Literal["succeeded", "failed", "cancelled", "paused"]
    failure_class: FailureClass | None = None
    cause: PlatformCause | None = None  # `infrastructure` without one counts as `platform`
    message: LongText = ""
    ledger: dict[Annotated[Text, Field(max_length=40)], BigCount] = Field(default_factory=dict, max_length=40)


class UnknownFact(Lenient):
    """A fact of an unknown kind of a later release: counted, and without effect."""

    type: Literal["unknown"] = "unknown"
    kind: Annotated[Text, Field(max_length=40)] = ""
    """The unknown kind."""


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
    | RunFinished
    | UnknownFact,
    Field(discriminator="type"),
]
BODIES: Final[Mapping[str, type[BaseModel]]] = {
    body.model_fields["type"].default: body for body in get_args(get_args(FactBody)[0])
}
FACT_NAMES: Final = names_of(BODIES)
"""All that this release understands."""
DECISIVE: Final = frozenset({"run_finished.outcome", "run_finished.failure_class", "run_finished.cause"})
"""The names that decide the ledger or what is billed, and whose values or very names are not known to every release
since 0.1.0. A control plane that does not know one refuses the fact."""
_NEEDS: Final = {kind: sorted(name for name in DECISIVE if name.partition(".")[0] == kind) for kind in BODIES}


def needs_of(body: FactBody) -> list[str]:
    return _NEEDS[body.type]


class Fact(Lenient):
    seq: BigOrdinal
    at: ReportedMoment
    body: FactBody
    needs: list[Annotated[Text, Field(max_length=200)]] = Field(
        default_factory=list, max_length=50, exclude_if=lambda needs: not needs
    )
    """Names of `vocabulary` without which this fact must not be stored, as its driver knows them."""
    _passed_over: tuple[str, ...] = PrivateAttr(default=())

    @property
    def passed_over(self) -> tuple[str, ...]:
        """The names that this release does not know."""
        return self._passed_over

    @property
    def missing(self) -> list[str]:
        """The names among them that this fact needs."""
        return needed_of(self.needs, self._passed_over)

    @model_validator(mode="wrap")
    @classmethod
    def _pass_over_unknown(cls, document: object, read: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(document, dict) or not isinstance(document.get("body"), dict):
            return read(document)
        body, passed_over = reduce_body(document["body"], BODIES)
        fact = read({**document, "body": body})
        fact._passed_over = (*passed_over, *(f"fact.{key}" for key in document.keys() - cls.model_fields.keys()))
        return fact
