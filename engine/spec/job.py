"""JobSpec: every setting of a job that a customer can change.

Invariants:
- a spec that validates here is accepted by the engine: both planes use this class;
- a default is what the demo job runs with, and safe for a model of any size;
- a default that depends on another setting is None here; a property computes its value for both planes;
- a resolved spec (all defaults filled in) validates to itself;
- settings that conflict are all reported at once, each at its own path.
"""

# Over budget: one contract, read from top to bottom; form and documentation follow its order.

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, model_validator

from engine.spec.evaluation import EvaluationSpec as EvaluationSpec
from engine.spec.evaluation import TokenSampling
from engine.spec.optimizer import OptimizerSpec as OptimizerSpec
from engine.spec.printable import refuse_unreadable
from engine.spec.recipes import RECIPES, AlgorithmName, CorrectionName, own_clips
from engine.spec.schedules import SCHEDULES, ScheduleName, all_schedules, own_bounds, own_leads
from engine.spec.settings.conditional import conditional
from engine.spec.settings.conflicts import find_conflicts
from engine.spec.strict import Strict, Text, Whole
from engine.spec.trainer import TrainerSpec as TrainerSpec

ParamKey = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
ParamValue = bool | Whole | float | Annotated[Text, Field(max_length=2_000)]
ACCEPTED: Final = object()
"""The validation context for a spec that was accepted earlier; see `JobSpec.accepted`."""


def _readable(name: str, info: ValidationInfo) -> str:
    return name if info.context is ACCEPTED else refuse_unreadable(name)


Name = Annotated[Text, AfterValidator(_readable), Field(min_length=1, max_length=120)]
Tag = Annotated[Text, AfterValidator(_readable), Field(min_length=1, max_length=40)]
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[1-9][0-9]{0,8})?")


class ModelSpec(Strict):
    """On the control plane `source` is a model's name; only `python -m engine run` accepts a path."""

    source: Annotated[Text, Field(min_length=1, max_length=500)] = Field(
        "demo",
        description="A built-in model (demo), or a model of your team, uploaded or shared with it: NAME or "
        "NAME@VERSION. NAME is resolved to the newest version when the job is submitted.",
    )
    chat: Literal["template", "plain"] | None = Field(
        None,
        description="How prompts and tool results are formatted for the model: with its own chat template, or as plain "
        "text. Empty: with the template if the model has one.",
    )
    chat_options: dict[ParamKey, ParamValue] = conditional(
        {}, "model.chat_options", "Variables of the chat template, such as enable_thinking.", max_length=40
    )
    history: Literal["template", "as_generated"] = conditional(
        "template",
        "model.history",
        "How the model sees its earlier answers at its next turn. template: as the chat template renders them; if the "
        "template changes them (Qwen3 drops thoughts), each turn prefills the conversation again and is trained as a "
        "separate segment. as_generated: the generated tokens, so a conversation is prefilled and trained once.",
    )

    @property
    def is_name(self) -> bool:
        return _MODEL_NAME.fullmatch(self.source) is not None


EnvironmentName = Literal["running_sums", "tool_sums", "reasoning_gym", "jsonl", "tools", "graded", "custom"]
FUNCTIONS: Final[dict[str, tuple[str, ...]]] = {"graded": ("respond",), "custom": ("prompt", "respond")}
"""Environments that run a customer's file, and the functions that the file must define."""


class EnvironmentSpec(Strict):
    name: EnvironmentName = Field("running_sums", description="The environment to learn in.")
    params: dict[ParamKey, ParamValue] = Field(
        default_factory=dict, max_length=40, description="Settings of the environment."
    )
    code: Annotated[Text, Field(max_length=100_000)] = conditional(
        "", "environment.code", "Your Python file. It runs in a sandbox."
    )
    turn_timeout_s: float = Field(
        60.0, gt=0, le=86_400, description="Time limit of a tool or grader. A timeout is an error, not a reward of 0."
    )
    workers: int = Field(
        1,
        ge=1,
        le=256,
        description="Processes that serve prompts, run tools and grade, spread over the rollouts' hosts. Use one per "
        "512 open samples, more if one keeps a core busy. Each holds the environment's data.",
    )

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that `code` must define; empty for an environment without code."""
        return FUNCTIONS.get(self.name, ())


class CorrectionSpec(Strict):
    """The importance-sampling correction for tokens that an older policy generated."""

    name: CorrectionName | None = Field(
        None,
        description="How the difference between the generating and the trained policy is corrected. Empty: truncated; "
        "none with cispo, whose clip does the same.",
    )
    cap: float = conditional(
        2.0, "algorithm.correction.cap", "The largest importance weight; larger ones are cut or masked.", gt=0, le=1_000
    )
    low: float = conditional(0.5, "algorithm.correction.low", "Tokens with a smaller ratio are masked.", ge=0, le=1)
    high: float = conditional(
        5.0, "algorithm.correction.high", "Tokens with a larger ratio are masked.", ge=1, le=1_000
    )


class KlSpec(Strict):
    """KL penalty against the model that the job started from."""

    coefficient: float = Field(0.0, ge=0, le=100, description="Weight of the KL penalty; 0: no reference model.")
    estimator: Literal["k1", "k2", "k3"] = conditional(
        "k3",
        "algorithm.kl.estimator",
        "Schulman's estimators of the KL divergence. k1 lowers the rewards, k2 and k3 are terms of the loss.",
    )


class CriticSpec(Strict):
    """The value model of PPO."""

    learning_rate: float = conditional(
        1e-3, "algorithm.critic.learning_rate", "The critic's learning rate.", gt=0, le=1
    )
    gamma: float = conditional(1.0, "algorithm.critic.gamma", "Discount of later rewards.", gt=0, le=1)
    gae_lambda: float = conditional(1.0, "algorithm.critic.gae_lambda", "GAE's bias-variance trade-off.", ge=0, le=1)
    value_clip: float = conditional(
        0.2, "algorithm.critic.value_clip", "The largest change of a value in one step.", gt=0, le=1_000
    )


class TeacherSpec(Strict):
    """On-policy distillation: a teacher model scores every token that the policy generates."""

    source: Annotated[Text, Field(max_length=500)] = Field(
        "",
        description="A frozen model to learn from: a built-in one (demo) or one of your team's, NAME or NAME@VERSION. "
        "It must have the policy's vocabulary. Empty: no teacher.",
    )
    coefficient: float = conditional(
        1.0,
        "algorithm.teacher.coefficient",
        "Weight of the distance to the teacher, relative to advantages of about 1.",
        gt=0,
        le=100,
    )
    reward_weight: float = conditional(
        1.0,
        "algorithm.teacher.reward_weight",
        "Weight of the rewards; 0: the policy learns from the teacher only.",
        ge=0,
        le=100,
    )

    @property
    def is_name(self) -> bool:
        return not self.source or _MODEL_NAME.fullmatch(self.source) is not None


class GroupsSpec(Strict):
    """Handling of groups in which a sample has no reward because its tool, grader or environment failed."""

    on_failure: Literal["train_rest", "replace", "drop"] = Field(
        "train_rest",
        description="When a sample fails without a reward: train_rest trains the group without it; replace starts "
        "another sample once no spare one is left, at most group_size per group, then trains the rest; drop drops the "
        "group.",
    )
    min_group: int | None = conditional(
        None,
        "algorithm.groups.min_group",
        "The fewest samples with a reward that a group is trained with; a smaller group is dropped. Empty: half of "
        "group_size, at least 2.",
        ge=1,
        le=256,
    )
    num_spare: int = Field(
        0,
        ge=0,
        le=256,
        description="Extra samples started per group. The first group_size samples with a reward form the group, the "
        "others are stopped. Hides the longest answers, but favours short ones.",
    )


class AlgorithmSpec(Strict):
    name: AlgorithmName = Field("grpo", description="The policy gradient algorithm.")
    group_size: int = Field(8, ge=1, le=256, description="Samples per prompt; their mean reward is the baseline.")
    clip_low: float | None = conditional(
        None,
        "algorithm.clip_low",
        f"The ratio is clipped below 1 - clip_low. Empty: the algorithm's default, {own_clips('clip_low')}.",
        gt=0,
        le=1,
    )
    clip_high: float | None = conditional(
        None,
        "algorithm.clip_high",
        "The ratio is clipped above 1 + clip_high. Left out: chosen for the model; for a small model the algorithm's "
        f"default, {own_clips('clip_high')}.",
        gt=0,
        le=10,
    )
    entropy_coefficient: float = Field(0.0, ge=0, le=10, description="Weight of the entropy bonus; 0: none.")
    overlong_tokens: int = conditional(
        0,
        "algorithm.overlong_tokens",
        "Length of DAPO's soft penalty: over the last tokens before the length limit the reward falls by up to 1.",
        ge=0,
        le=131_072,
    )
    groups: GroupsSpec = Field(default_factory=GroupsSpec)
    mask_truncated: bool = Field(
        False,
        description="Exclude truncated trajectories from the loss and from their group's baseline (overlong filtering, "
        "as in DAPO).",
    )
    correction: CorrectionSpec = Field(default_factory=CorrectionSpec)
    kl: KlSpec = Field(default_factory=KlSpec)
    critic: CriticSpec = Field(default_factory=CriticSpec)
    teacher: TeacherSpec = Field(default_factory=TeacherSpec)

    @model_validator(mode="after")
    def _has_a_baseline(self) -> Self:
        if self.group_size < 2 and self.learns_from_rewards and RECIPES[self.name].has_group_baseline:
            raise ValueError(f"group_size must be at least 2 for {self.name}: the group's mean is the baseline")
        return self

    @property
    def least_group(self) -> int:
        """The smallest number of rewarded samples that a group is trained with."""
        if self.groups.on_failure == "drop":
            return self.group_size
        least = max(2, self.group_size // 2) if self.groups.min_group is None else self.groups.min_group
        return min(least, self.group_size)

    @property
    def clips(self) -> tuple[float, float]:
        """The clip distances below and above 1."""
        own = RECIPES[self.name]
        low = own.clip_low if self.clip_low is None else self.clip_low
        return low, own.clip_high if self.clip_high is None else self.clip_high

    @property
    def has_teacher(self) -> bool:
        return bool(self.teacher.source)

    @property
    def learns_from_rewards(self) -> bool:
        return not self.has_teacher or self.teacher.reward_weight > 0

    @property
    def corrects_by(self) -> CorrectionName:
        return self.correction.name or RECIPES[self.name].correction


class ScheduleSpec(Strict):
    name: ScheduleName = Field("laminar", description=f"How generation and training overlap. {all_schedules()}")
    max_staleness: int | None = Field(
        None,
        ge=0,
        le=1_000,
        description=f"Staler trajectories are dropped, with a reason. Empty: the schedule's default, {own_bounds()}.",
    )
    lead_steps: float | None = conditional(
        None,
        "schedule.lead_steps",
        "How many steps generation runs ahead of training. A larger lead hides longer answers and adds as much "
        f"staleness. Empty: the schedule's default, {own_leads()}.",
        ge=0,
        le=100,
    )
    age_cap: int | None = conditional(
        None,
        "schedule.age_cap",
        "An answer on weights older than this many versions continues on the newest with its KV cache unchanged; so "
        "does one on a replica's oldest weights if no slot is free for newer ones. Empty: answers never switch.",
        ge=1,
        le=1_000,
    )
    repack: bool = conditional(
        True, "schedule.repack", "Move the last answers together to free replicas for new weights."
    )

    @property
    def staleness_bound(self) -> int:
        return SCHEDULES[self.name].max_staleness if self.max_staleness is None else self.max_staleness


class TrainingSpec(Strict):
    steps: int = Field(100, ge=0, le=1_000_000, description="Batches to train, one version each; 0: only evaluate.")
    prompts_per_step: int = Field(16, ge=1, le=65_536, description="Prompts per step, each with a whole group.")
    mini_batches: int = Field(
        1, ge=1, le=65_536, description="Mini-batches per step, split by whole groups; each is one optimizer update."
    )
    passes: int = Field(1, ge=1, le=100, description="Passes over a step's batch, each with all mini-batches.")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Random seed for prompts and samples.")
    checkpoint_every: int = Field(50, ge=1, le=1_000_000, description="Steps between checkpoints; the last is kept.")
    checkpoint_minutes: float = Field(
        15.0, ge=0, le=10_080, description="Also save one after a step if the last is this many minutes old; 0: never."
    )

    @property
    def updates_per_step(self) -> int:
        """An upper bound: a step that trains on fewer prompts than there are mini-batches makes fewer updates."""
        return self.mini_batches * self.passes


class RolloutSpec(Strict):
    engine: Literal["torch", "vllm"] = Field(
        "torch", description="The inference engine. Left out: vllm for a large model if the pool has it, else torch."
    )
    replicas: int = Field(2, ge=1, le=4_096, description="Rollout engines. Left out: chosen for model and pool, or 2.")
    max_batch: int = Field(
        64, ge=1, le=4_096, description="Sequences per decoding batch. Left out: chosen for model and pool, or 64."
    )
    max_new_tokens: int = Field(
        80, ge=1, le=131_072, description="The longest response. Left out: chosen for the model; 80 for a small model."
    )
    temperature: float = Field(1.0, gt=0, le=4, description="Sampling temperature; 1: the model's own distribution.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the likeliest tokens of this total probability.")
    top_k: int = Field(0, ge=0, le=1_000_000, description="Sample from this many of the likeliest tokens; 0: all.")
    min_p: float = Field(0.0, ge=0, lt=1, description="Least probability of a token, relative to the likeliest.")
    stop: list[Annotated[Text, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list, max_length=16, description="Texts that end an answer."
    )
    kv_tokens: int = Field(
        0, ge=0, le=1_000_000_000, description="Size of a replica's KV cache; 0: max_batch answers of full length."
    )
    weight_slots: int | None = conditional(
        None,
        "rollout.weight_slots",
        "Weight versions that a replica holds at once, so that it can take new weights while older answers finish. "
        "Each needs the memory of the weights; with vllm and LoRA, of an adapter. Empty: 2; with vllm without LoRA 1, "
        "the only choice.",
        ge=1,
        le=8,
    )

    @property
    def sampling(self) -> TokenSampling:
        return TokenSampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p)


class ResourceSpec(Strict):
    """A device is one accelerator of a pool; in a CPU pool, one slot."""

    trainer_devices: int = Field(
        1,
        ge=0,
        le=4_096,
        description="Devices of the trainer; 0 is allowed if training.steps is 0. Left out: chosen for model and pool; "
        "1 for a small model.",
    )
    devices_per_replica: int = conditional(
        1,
        "resources.devices_per_replica",
        "Devices per replica, on one host; the model is split over them. Left out: chosen for model and pool.",
        ge=1,
        le=64,
    )


class PlacementSpec(Strict):
    """The job's place in the queue of its pool."""

    priority: int = Field(0, ge=-100, le=100, description="Jobs of your team with a higher priority start first.")
    preemptible: bool = Field(
        False, description="Allow the job on devices borrowed from other teams; it is paused when they need them back."
    )
    min_replicas: int | None = Field(
        None,
        ge=1,
        le=4_096,
        description="Start with this many replicas and add the others while devices are free. Empty: all of them.",
    )


class JobSpec(Strict):
    schema_version: Literal[1] = 1
    name: Name = Field(description="The job's name.")
    tags: list[Tag] = Field(default_factory=list, max_length=20, description="Tags to find the job by.")
    model: ModelSpec = Field(default_factory=ModelSpec)
    environment: EnvironmentSpec = Field(default_factory=EnvironmentSpec)
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec)
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    schedule: ScheduleSpec = Field(default_factory=ScheduleSpec)
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    trainer: TrainerSpec = Field(default_factory=TrainerSpec)
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    evaluation: EvaluationSpec = Field(default_factory=EvaluationSpec)
    resources: ResourceSpec = Field(default_factory=ResourceSpec)
    placement: PlacementSpec = Field(default_factory=PlacementSpec)
    max_runtime_s: int = Field(
        3_600,
        ge=10,
        le=30 * 86_400,
        description="The job is stopped after this many seconds; it saves a checkpoint shortly before.",
    )

    @classmethod
    def accepted(cls, document: object) -> Self:
        """Reads a spec that was accepted earlier, without the rules across settings: an earlier release may have had
        fewer of them, and its jobs must continue."""
        return cls.model_validate(document, context=ACCEPTED)

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        errors = [] if info.context is ACCEPTED else list(find_conflicts(self))
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    @property
    def trainer_devices(self) -> int:
        """0 for a job that only evaluates, which keeps its weights in host memory, whatever the spec requests."""
        return 0 if self.only_evaluates else self.resources.trainer_devices

    @property
    def num_devices(self) -> int:
        return self.trainer_devices + self.rollout.replicas * self.resources.devices_per_replica

    @property
    def min_devices(self) -> int:
        """The devices that must be free at once for the job to start; further replicas are elastic."""
        replicas = self.placement.min_replicas or self.rollout.replicas
        return self.trainer_devices + replicas * self.resources.devices_per_replica

    @property
    def only_evaluates(self) -> bool:
        """Nothing is trained: the initial weights answer the held-out prompts once."""
        return self.training.steps == 0

    @property
    def evaluation_sampling(self) -> TokenSampling:
        """`evaluation`'s values, and the rollouts' where those are empty."""
        return self.evaluation.sampling(self.rollout.sampling)

    @property
    def trajectories_per_step(self) -> int:
        return self.training.prompts_per_step * self.algorithm.group_size
