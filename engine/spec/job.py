"""JobSpec: everything that a customer may set about a job.

Invariants:
- a spec that validates here is accepted by the engine: both planes use this very class;
- a default is what the demo job runs with, and safe for a model of any size; every bound has its reason beside it;
- a default that follows from another setting is None here, and a property says what it comes to, for both planes;
- a resolved spec (all defaults filled in) validates to itself;
- everything that does not fit together is told at once, each at its own place.
"""

# Over budget: one contract, read from top to bottom; form and documentation follow its order.

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, model_validator

from engine.spec.evaluation import EvaluationSpec as EvaluationSpec
from engine.spec.evaluation import TokenSampling
from engine.spec.knob_effects import knob
from engine.spec.misfits import misfits
from engine.spec.optimizer import OptimizerSpec as OptimizerSpec
from engine.spec.printable import refuse_unreadable
from engine.spec.recipes import RECIPES, AlgorithmName, CorrectionName, own_clips
from engine.spec.schedules import SCHEDULES, ScheduleName, all_schedules, own_bounds, own_leads
from engine.spec.strict import Strict, Text, Whole

ParamKey = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
ParamValue = bool | Whole | float | Annotated[Text, Field(max_length=2_000)]
ACCEPTED: Final = object()
"""The context in which a spec is read that was taken in before; see `JobSpec.accepted`."""


def _readable(name: str, info: ValidationInfo) -> str:
    return name if info.context is ACCEPTED else refuse_unreadable(name)


Name = Annotated[Text, AfterValidator(_readable), Field(min_length=1, max_length=120)]
Tag = Annotated[Text, AfterValidator(_readable), Field(min_length=1, max_length=40)]
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[1-9][0-9]{0,8})?")


class ModelSpec(Strict):
    """A job of the control plane names a model; only `python -m engine run` takes a path."""

    source: Annotated[Text, Field(min_length=1, max_length=500)] = Field(
        "demo",
        description="A built-in model (demo), or one that your team uploaded or was given: NAME, or NAME@VERSION. The "
        "newest version when the job is submitted is the one that it keeps.",
    )
    chat: Literal["template", "plain"] | None = Field(
        None,
        description="How prompts, and what tools say, are put to the model: by the chat template of its folder, or as "
        "they stand. Empty: by the template where there is one.",
    )
    chat_options: dict[ParamKey, ParamValue] = knob(
        {}, "model.chat_options", "Variables of the chat template, such as enable_thinking.", max_length=40
    )
    history: Literal["template", "as_generated"] = knob(
        "template",
        "model.history",
        "How the model reads its earlier answers at its next turn. template: as the chat template renders them; where "
        "it changes them (Qwen3 drops thoughts), each turn reads the conversation anew and is trained as a segment of "
        "its own. as_generated: the tokens that were generated, so that a conversation is read and trained once.",
    )

    @property
    def is_name(self) -> bool:
        return _MODEL_NAME.fullmatch(self.source) is not None


EnvironmentName = Literal["running_sums", "tool_sums", "reasoning_gym", "jsonl", "tools", "graded", "custom"]
FUNCTIONS: Final[dict[str, tuple[str, ...]]] = {"graded": ("respond",), "custom": ("prompt", "respond")}
"""Environments that run a customer's file, and what it must define."""


class EnvironmentSpec(Strict):
    name: EnvironmentName = Field("running_sums", description="What is learned.")
    params: dict[ParamKey, ParamValue] = Field(
        default_factory=dict, max_length=40, description="Settings of the environment."
    )
    code: Annotated[Text, Field(max_length=100_000)] = knob(
        "", "environment.code", "A Python file of your own. It runs in a sandbox."
    )
    turn_timeout_s: float = Field(
        60.0, gt=0, le=86_400, description="A tool or a grader that takes longer is a counted error, not a reward of 0."
    )
    workers: int = Field(
        1,
        ge=1,
        le=256,
        description="Processes that give prompts, run tools and grade, on the rollouts' hosts in turns: one for 512 "
        "open samples, more where one keeps a core busy. Each holds the environment's data.",
    )

    @property
    def functions(self) -> tuple[str, ...]:
        """Those that its code must define; none where it has no code."""
        return FUNCTIONS.get(self.name, ())


class CorrectionSpec(Strict):
    """The correction for tokens that an older policy wrote."""

    name: CorrectionName | None = Field(
        None,
        description="How the gap between writer and learner is corrected. Empty: truncated; with cispo none, as its "
        "clip does the same.",
    )
    cap: float = knob(
        2.0, "algorithm.correction.cap", "The largest weight; beyond it truncated or left out.", gt=0, le=1_000
    )
    low: float = knob(0.5, "algorithm.correction.low", "Tokens with a smaller ratio are left out.", ge=0, le=1)
    high: float = knob(5.0, "algorithm.correction.high", "Tokens with a larger ratio are left out.", ge=1, le=1_000)


class KlSpec(Strict):
    """Distance to the model that the job began with."""

    coefficient: float = Field(0.0, ge=0, le=100, description="Weight of the KL penalty; 0: no reference model.")
    estimator: Literal["k1", "k2", "k3"] = knob(
        "k3",
        "algorithm.kl.estimator",
        "Schulman's estimators of the KL divergence. k1 is a cost in the rewards, k2 and k3 are terms of the loss.",
    )


class CriticSpec(Strict):
    """The model that knows how good a beginning is."""

    learning_rate: float = knob(1e-3, "algorithm.critic.learning_rate", "AdamW's step size for the critic.", gt=0, le=1)
    gamma: float = knob(1.0, "algorithm.critic.gamma", "Discount of later rewards.", gt=0, le=1)
    gae_lambda: float = knob(1.0, "algorithm.critic.gae_lambda", "GAE's trade between bias and variance.", ge=0, le=1)
    value_clip: float = knob(
        0.2, "algorithm.critic.value_clip", "How far a value may move in one step.", gt=0, le=1_000
    )


class TeacherSpec(Strict):
    """A model that says of every token that the policy writes how likely it would have been: on-policy distillation."""

    source: Annotated[Text, Field(max_length=500)] = Field(
        "",
        description="A frozen model to learn from: a built-in one (demo), or one of your team's, NAME or NAME@VERSION, "
        "with the policy's own vocabulary. Empty: none.",
    )
    coefficient: float = knob(
        1.0,
        "algorithm.teacher.coefficient",
        "Weight of the distance to the teacher, beside advantages that are about 1.",
        gt=0,
        le=100,
    )
    reward_weight: float = knob(
        1.0,
        "algorithm.teacher.reward_weight",
        "Weight of what rewards say; 0: the policy learns from the teacher alone.",
        ge=0,
        le=100,
    )

    @property
    def is_name(self) -> bool:
        return not self.source or _MODEL_NAME.fullmatch(self.source) is not None


class GroupsSpec(Strict):
    """Groups in which a sample has no verdict because its tool, grader or environment failed."""

    on_failure: Literal["train_rest", "replace", "drop"] = Field(
        "train_rest",
        description="When a sample has no verdict: train_rest trains its group without that sample; replace starts "
        "another one, at most as many as the group has, and then trains the rest; drop drops the group.",
    )
    min_group: int | None = knob(
        None,
        "algorithm.groups.min_group",
        "Samples with a verdict that a group needs; with fewer the group is dropped. Empty: half of group_size, at "
        "least 2.",
        ge=1,
        le=256,
    )
    num_spare: int = Field(
        0,
        ge=0,
        le=256,
        description="Samples begun beyond group_size; the first group_size with a verdict make the group, the others "
        "are stopped. Hides the longest answers and favours short ones.",
    )


class AlgorithmSpec(Strict):
    name: AlgorithmName = Field("grpo", description="How rewards become gradients.")
    group_size: int = Field(8, ge=1, le=256, description="Samples of one prompt; their mean is the baseline.")
    clip_low: float | None = knob(
        None,
        "algorithm.clip_low",
        f"How far a ratio may fall before it is clipped. Empty: the algorithm's own, {own_clips('clip_low')}.",
        gt=0,
        le=1,
    )
    clip_high: float | None = knob(
        None,
        "algorithm.clip_high",
        "How far a ratio may rise before it is clipped. Left out: by the model; of a small one the algorithm's own, "
        f"{own_clips('clip_high')}.",
        gt=0,
        le=10,
    )
    entropy_coefficient: float = Field(0.0, ge=0, le=10, description="Reward for staying undecided.")
    overlong_tokens: int = knob(
        0,
        "algorithm.overlong_tokens",
        "The last so many tokens before the cut cost up to a reward of 1, as in DAPO.",
        ge=0,
        le=131_072,
    )
    groups: GroupsSpec = Field(default_factory=GroupsSpec)
    mask_truncated: bool = Field(
        False,
        description="Nothing is learned from truncated trajectories, and no other is measured against them (overlong "
        "filtering, as in DAPO).",
    )
    correction: CorrectionSpec = Field(default_factory=CorrectionSpec)
    kl: KlSpec = Field(default_factory=KlSpec)
    critic: CriticSpec = Field(default_factory=CriticSpec)
    teacher: TeacherSpec = Field(default_factory=TeacherSpec)

    @model_validator(mode="after")
    def _has_a_baseline(self) -> Self:
        if self.group_size < 2 and self.learns_from_rewards and RECIPES[self.name].has_group_baseline:
            raise ValueError(f"group_size must be at least 2 for {self.name}: a group's mean is its baseline")
        return self

    @property
    def least_group(self) -> int:
        """The smallest number of graded samples that a group is trained with."""
        if self.groups.on_failure == "drop":
            return self.group_size
        least = max(2, self.group_size // 2) if self.groups.min_group is None else self.groups.min_group
        return min(least, self.group_size)

    @property
    def clips(self) -> tuple[float, float]:
        """Below and above 1."""
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
    name: ScheduleName = Field("laminar", description=f"Who waits for whom. {all_schedules()}")
    max_staleness: int | None = Field(
        None,
        ge=0,
        le=1_000,
        description=f"Older trajectories are dropped, with a reason. Empty: the schedule's own, {own_bounds()}.",
    )
    lead_steps: float | None = knob(
        None,
        "schedule.lead_steps",
        "How far generation runs ahead of training, in steps. More hides longer answers and adds as much staleness. "
        f"Empty: the schedule's own, {own_leads()}.",
        ge=0,
        le=100,
    )
    age_cap: int | None = knob(
        None,
        "schedule.age_cap",
        "An answer whose weights are more versions old than this goes on on the newest, with what it has cached; so "
        "does one on the oldest weights of a replica without a slot for newer ones. Empty: each ends on its own.",
        ge=1,
        le=1_000,
    )
    repack: bool = knob(True, "schedule.repack", "Move the last few answers together, so that others can go on.")

    @property
    def staleness_bound(self) -> int:
        return SCHEDULES[self.name].max_staleness if self.max_staleness is None else self.max_staleness


class TrainingSpec(Strict):
    steps: int = Field(100, ge=0, le=1_000_000, description="Batches trained, a version each; 0: none, only evaluated.")
    prompts_per_step: int = Field(16, ge=1, le=65_536, description="Prompts in one step; each has a whole group.")
    mini_batches: int = Field(
        1, ge=1, le=65_536, description="Parts that a step's batch is cut into, by whole groups. Each makes an update."
    )
    passes: int = Field(1, ge=1, le=100, description="How often a step's batch is gone over, with all of its updates.")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Draws the prompts and the samples.")
    checkpoint_every: int = Field(50, ge=1, le=1_000_000, description="Steps between checkpoints; the last is kept.")
    checkpoint_minutes: float = Field(
        15.0, ge=0, le=10_080, description="A checkpoint also at the end of a step so long after the last; 0: never."
    )

    @property
    def updates_per_step(self) -> int:
        """Fewer in a step of which fewer prompts are trained on than there are mini-batches."""
        return self.mini_batches * self.passes


class TrainerSpec(Strict):
    backend: Literal["torch", "deepspeed"] = Field(
        "torch",
        description="What computes and applies the gradients. torch divides all of it among several devices (FSDP), "
        "with the least memory of each in bfloat16 at every size; deepspeed (ZeRO) trains dense models.",
    )
    zero_stage: int = knob(
        2, "trainer.zero_stage", "Divided among devices: optimizer (1), gradients too (2), weights too (3).", ge=1, le=3
    )
    compute_dtype: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="What products are computed in; weights are kept in float32 either way. Empty: bfloat16 on a GPU "
        "that has it, float32 elsewhere.",
    )
    activations: Literal["kept", "recomputed", "offloaded"] | None = Field(
        None,
        description="What a layer leaves for the backward pass: all that this needs; only its input, from which the "
        "rest is computed again; or its input in the host's memory. The result is the same to the bit. Empty: kept "
        "where that is 8 GB at most, else recomputed.",
    )
    micro_batch_tokens: int = Field(
        8_192,
        ge=16,
        le=4_194_304,
        description="Tokens in one forward and backward pass; bounds the memory. Left out: by the model; 8,192 of a "
        "small one.",
    )
    sequence_parallel: int = knob(
        1,
        "trainer.sequence_parallel",
        "Devices that share the tokens of a sequence: each computes a part of them, and in attention all of them for a "
        "part of the heads. For contexts too long for one device.",
        ge=1,
        le=64,
    )
    lora_rank: int = Field(0, ge=0, le=1_024, description="Train an update of this rank only; 0: all weights.")
    lora_alpha: float = knob(32.0, "trainer.lora_alpha", "The update is scaled by alpha / rank.", gt=0, le=10_000)


class RolloutSpec(Strict):
    engine: Literal["torch", "vllm"] = Field(
        "torch", description="What generates. Left out: vllm for a large model where the pool has it, else torch."
    )
    replicas: int = Field(2, ge=1, le=4_096, description="Rollout engines. Left out: by model and pool, or 2.")
    max_batch: int = Field(
        64, ge=1, le=4_096, description="Sequences that a replica decodes together. Left out: by model and pool, or 64."
    )
    max_new_tokens: int = Field(
        80, ge=1, le=131_072, description="Longer responses are cut. Left out: by the model; 80 of a small one."
    )
    temperature: float = Field(1.0, gt=0, le=4, description="1 samples from the model as it is.")
    top_p: float = Field(1.0, gt=0, le=1, description="Only the likeliest tokens that make up this probability.")
    top_k: int = Field(0, ge=0, le=1_000_000, description="Only so many of the likeliest tokens; 0: all.")
    min_p: float = Field(0.0, ge=0, lt=1, description="Only tokens at least this likely, relative to the likeliest.")
    stop: list[Annotated[Text, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list, max_length=16, description="An answer ends with any of these."
    )
    kv_tokens: int = Field(
        0, ge=0, le=1_000_000_000, description="Tokens that fit a replica's KV cache; 0: max_batch whole answers."
    )
    weight_slots: int | None = knob(
        None,
        "rollout.weight_slots",
        "Versions that a replica holds side by side, so that it never waits for its last answers before it takes "
        "the next one. Each costs the memory of the weights; with vllm and a LoRA rank that of an adapter. Empty: 2; "
        "with vllm and without LoRA 1, its only choice.",
        ge=1,
        le=8,
    )

    @property
    def sampling(self) -> TokenSampling:
        return TokenSampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p)


class ResourceSpec(Strict):
    """A device is one accelerator of a pool; on a CPU pool, one slot."""

    trainer_devices: int = Field(
        1,
        ge=0,
        le=4_096,
        description="Devices that the trainer holds; none where nothing is trained. Left out: "
        "by model and pool; 1 of a small one.",
    )
    devices_per_replica: int = knob(
        1,
        "resources.devices_per_replica",
        "Devices that each replica holds, on one host, with a part of the model each. Left out: by model and pool.",
        ge=1,
        le=64,
    )


class PlacementSpec(Strict):
    """The job's place in its pool's line."""

    priority: int = Field(0, ge=-100, le=100, description="Within your team: higher goes first.")
    preemptible: bool = Field(
        False, description="May run on devices that other teams lend, and is paused when they want them back."
    )
    min_replicas: int | None = Field(
        None,
        ge=1,
        le=4_096,
        description="Starts with so many replicas; the others come and go with free devices. Empty: all or nothing.",
    )


class JobSpec(Strict):
    schema_version: Literal[1] = 1
    name: Name = Field(description="What you call this job.")
    tags: list[Tag] = Field(default_factory=list, max_length=20, description="Words to find it by.")
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
        description="The job is stopped after this long; shortly before, it saves a checkpoint.",
    )

    @classmethod
    def accepted(cls, document: object) -> Self:
        """A spec that was taken in before, perhaps by a release with fewer rules about what fits together: its job
        goes on by what it has."""
        return cls.model_validate(document, context=ACCEPTED)

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        errors = [] if info.context is ACCEPTED else list(misfits(self))
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    @property
    def trainer_devices(self) -> int:
        """An evaluation's weights lie in host memory, whatever its spec asks for."""
        return 0 if self.only_evaluates else self.resources.trainer_devices

    @property
    def num_devices(self) -> int:
        return self.trainer_devices + self.rollout.replicas * self.resources.devices_per_replica

    @property
    def min_devices(self) -> int:
        """The devices that must be free at once for the job to start; the rest is elastic."""
        replicas = self.placement.min_replicas or self.rollout.replicas
        return self.trainer_devices + replicas * self.resources.devices_per_replica

    @property
    def only_evaluates(self) -> bool:
        """Nothing is trained: the weights that it begins with answer the held-out prompts once."""
        return self.training.steps == 0

    @property
    def evaluation_sampling(self) -> TokenSampling:
        """The rollouts' own, where `evaluation` is empty."""
        return self.evaluation.sampling(self.rollout.sampling)

    @property
    def trajectories_per_step(self) -> int:
        return self.training.prompts_per_step * self.algorithm.group_size
