"""Facts: the engine's news about an attempt. Past participles, each stored once.

Invariants:
- `seq` counts 1, 2, 3, … within an attempt with no gap; a fact is never changed after it was spooled;
- a fact with an old fence has no effect: the control plane answers 409 and the driver stops;
- a kind or a field of a later release is passed over, so that either side may be upgraded first.
"""

import re
from typing import Annotated, Final, Literal, get_args

from pydantic import Field, model_validator

from engine.spec.checkpoint_manifest import CheckpointAddress
from engine.spec.strict import BigCount, BigOrdinal, Count, Ordinal, Text, Told, ToldMoment, Whole

MetricName = Annotated[str, Field(pattern=r"^[a-z0-9_]+(/[a-z0-9_]+)*$", max_length=100)]
_KIND: Final = re.compile(r"[a-z]+(_[a-z]+)*", re.ASCII)
MAX_TRACED = 2_048
MAX_SPANS = 500
MAX_LINES = 200
LONGEST_LINE = 1_000  # a fact of the most and the longest is still smaller than a body may be
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


class DriverStarted(Told):
    type: Literal["driver_started"] = "driver_started"
    host: Annotated[Text, Field(max_length=255)]
    pid: Count


class PhaseChanged(Told):
    type: Literal["phase_changed"] = "phase_changed"
    phase: Phase


class PipelineReady(Told):
    """Every actor is placed and holds weights: the job is running from here on."""

    type: Literal["pipeline_ready"] = "pipeline_ready"
    num_replicas: Count
    num_parameters: BigCount


class StepTrained(Told):
    """One step: a batch trained. Metric names are the series of the page; steps count from 1."""

    type: Literal["step_trained"] = "step_trained"
    step: Ordinal
    metrics: dict[MetricName, float] = Field(max_length=200)
    ledger: dict[Annotated[Text, Field(max_length=40)], BigCount] = Field(default_factory=dict, max_length=40)
    """Where all samples of the run went, by data's last word before this step; empty: not told."""


class Evaluated(Told):
    """The held-out prompts answered by the weights of one version."""

    type: Literal["evaluated"] = "evaluated"
    version: BigCount
    num_prompts: Count
    reward_mean: float
    """Over prompts, of the mean reward of each prompt's answers: avg@k."""
    reward_std: float = Field(ge=0)
    """Of the prompts' mean rewards about their mean; 0 where there is one prompt."""
    length_mean: float
    num_samples: int = Field(1, ge=1, le=65_536)
    """k: the answers that each prompt was asked for."""
    reward_error: float = Field(0.0, ge=0)
    """Standard error of `reward_mean`, over prompts."""
    pass_rate: float | None = Field(None, ge=0, le=1)
    """pass@k: the share of prompts with an answer whose reward is at least `evaluation.pass_mark`. None: not told."""
    pass_error: float = Field(0.0, ge=0)
    """Standard error of `pass_rate`, over prompts."""


class PromptsAnswered(Told):
    """The progress of one version's evaluation: told while it lasts, about once a second, and at its end."""

    type: Literal["prompts_answered"] = "prompts_answered"
    version: BigCount
    num_answered: int = Field(ge=0, le=65_536)
    """Have their end: an answer, or the word that there will be none."""
    num_prompts: int = Field(ge=1, le=65_536)


class TokenTrace(Told):
    """The first tokens of a response, position by position."""

    token_ids: list[Whole] = Field(max_length=MAX_TRACED)
    logprobs: list[float] = Field(max_length=MAX_TRACED)
    """By the policy that wrote each; 0 for an environment's words."""
    versions: list[Whole] = Field(max_length=MAX_TRACED)
    written: list[bool] = Field(max_length=MAX_TRACED)
    """By the model; false: an environment's words."""
    texts: list[Annotated[Text, Field(max_length=LONGEST_TOKEN)]] = Field(default_factory=list, max_length=MAX_TRACED)
    """Of each token; what is no text by itself (a part of a letter) is the replacement character. Empty: not told."""
    trainer_logprobs: list[float] = Field(default_factory=list, max_length=MAX_TRACED)
    """By the trainer at the weights that its step began with; 0 for an environment's words. Empty: not known,
    as of what it never trained on."""


class Turn(Told):
    """One message behind the prompt."""

    author: Literal["model", "environment"]
    text: LongText
    first_token: Count
    """Its place in the response."""
    num_tokens: Count
    tool: Annotated[Text, Field(max_length=200)] = ""
    """The tool that this message calls, or answers for; empty: none."""
    arguments: LongText = ""
    """Of the call, as the model wrote them."""
    seconds: float | None = Field(default=None, ge=0)
    """The environment's, for its answer."""
    error: LongText = ""
    """Of the tool or the environment; empty: it went well."""


class TrajectorySample(Told):
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
    end: End = "trained"
    """What became of it."""
    reason: LongText = ""
    """For that end, where it was not trained."""
    group_size: Count = 0
    """Samples of its question; 0: not told. The whole group is told where as many come with this prompt_ordinal."""
    turns: list[Turn] = Field(default_factory=list, max_length=MAX_TURNS)
    """The response as messages, in order; empty: it is one, by the model."""
    parts: dict[Annotated[Text, Field(max_length=60)], float] = Field(default_factory=dict, max_length=MAX_PARTS)
    """Of the reward, where the environment names them."""


class TrajectoriesSampled(Told):
    """Some of a step's trajectories, to be read: whole groups, and one of each end and outcome that there was."""

    type: Literal["trajectories_sampled"] = "trajectories_sampled"
    step: Ordinal
    trajectories: list[TrajectorySample] = Field(max_length=32)


class CheckpointSaved(Told):
    """`uri` holds a whole checkpoint: its manifest was written last and read back."""

    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: Count
    version: BigCount
    uri: CheckpointAddress
    manifest_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    num_bytes: BigCount
    code_version: Annotated[Text, Field(max_length=80)] = ""
    """Of the engine that made it."""


class FaultDetected(Told):
    type: Literal["fault_detected"] = "fault_detected"
    component: Annotated[Text, Field(max_length=100)]
    message: LongText
    action: LongText


class Span(Told):
    doing: Literal["decode", "prefill", "environment", "weights", "move", "idle"]
    start_s: float = Field(le=0)
    """Before the fact's own time, hence negative."""
    end_s: float = Field(le=0)


class ReplicaState(Told):
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
    """Of decoding, since its incarnation began, each a token of everything that ran; 0: not told."""
    decode_s: float = Field(default=0.0, ge=0)
    """Seconds of those steps, with what was read between them."""
    num_installs: BigCount = 0
    """Of weights, since then."""
    install_s: float = Field(default=0.0, ge=0)
    spans: list[Span] = Field(max_length=MAX_SPANS)


class ReplicasObserved(Told):
    """The activity of replicas since the fact of this kind before. Of very many replicas, some, each in its turn."""

    type: Literal["replicas_observed"] = "replicas_observed"
    replicas: list[ReplicaState] = Field(max_length=64)
    num_replicas: Count = 0
    """That there are; 0: not told."""


class LogLine(Told):
    at: ToldMoment
    level: LogLevel
    message: Annotated[Text, Field(max_length=LONGEST_LINE)]


class LogLines(Told):
    """Lines of one component, oldest first. Those beyond its rate were dropped where they were written."""

    type: Literal["log_lines"] = "log_lines"
    component: Annotated[str, Field(pattern=r"^[a-z]+(-[0-9]+)?$", max_length=60)]
    """`driver`, `trainer`, `data`, `environment`, `rollout-0`, `relay-1`, …"""
    lines: list[LogLine] = Field(max_length=MAX_LINES)
    num_dropped: Count = 0
    """Since the fact of this component before."""


class RequestAcknowledged(Told):
    type: Literal["request_acknowledged"] = "request_acknowledged"
    request_id: Annotated[Text, Field(max_length=64)]


class ReplicasResized(Told):
    """The run goes on with so many replicas; nothing of the others is left."""

    type: Literal["replicas_resized"] = "replicas_resized"
    replicas: Ordinal


class RunFinished(Told):
    """The last fact of an attempt."""

    type: Literal["run_finished"] = "run_finished"
    outcome: Literal["succeeded", "failed", "cancelled", "paused"]
    failure_class: FailureClass | None = None
    message: LongText = ""
    ledger: dict[Annotated[Text, Field(max_length=40)], BigCount] = Field(default_factory=dict, max_length=40)


class Untold(Told):
    """A fact of a kind that came with a later release: counted, and without effect."""

    type: Literal["untold"] = "untold"
    said: Annotated[Text, Field(max_length=40)] = ""
    """The kind."""


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
    | Untold,
    Field(discriminator="type"),
]
KINDS: Final = frozenset(body.model_fields["type"].default for body in get_args(get_args(FactBody)[0]))


class Fact(Told):
    seq: BigOrdinal
    at: ToldMoment
    body: FactBody

    @model_validator(mode="before")
    @classmethod
    def _of_a_later_release(cls, told: object) -> object:
        match told:
            case {"body": {"type": str(kind)}, **others} if kind not in KINDS and _KIND.fullmatch(kind):
                return {**others, "body": {"type": "untold", "said": kind}}
        return told
