"""Settings that have an effect only sometimes: for each a condition and a sentence.

Validation errors, the form's help and the API documentation are generated from this table, so that they agree.

Invariants:
- a setting without effect is accepted at its default only;
- a job that only evaluates (`training.steps` 0) may keep the settings of its trainer: this change and
  `evaluation.every` 0 turn the spec of a training job into the evaluation of its initial weights;
- a bound that the job keeps anyway counts as having an effect: `schedule.max_staleness` 3 holds with `sync` too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, Field

from engine.spec.schedules import SCHEDULES
from engine.spec.slots import num_weight_slots

if TYPE_CHECKING:
    from engine.spec.job import JobSpec

CLIPS: Final = ("none", "a3po")
"""Corrections whose ratio compares π_θ with a policy older than the step. With the others the ratio is 1 in a step's
first update, so that a step of one update never clips."""
NEVER_CLIPS: Final = "aipo"
"""Its ratio compares π_θ with itself in every update: its cap is its only bound."""
CAPS: Final = ("truncated", "masked", "decoupled", "a3po", "aipo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    only: str
    """When the setting has an effect, as a sentence for users."""
    acts: Callable[["JobSpec"], bool]


def _of(only: str, acts: Callable[["JobSpec"], bool], *paths: str) -> dict[str, Condition]:
    return dict.fromkeys(paths, Condition(only=only, acts=acts))


CONDITIONAL_SETTINGS: Final[dict[str, Condition]] = {
    **_of(
        f"Only with the correction {' or '.join(CLIPS)}, or with several updates per step (training.mini_batches, "
        f"training.passes) and any correction but {NEVER_CLIPS}: otherwise the ratio is always 1.",
        lambda spec: (
            spec.algorithm.corrects_by in CLIPS
            or (spec.training.updates_per_step > 1 and spec.algorithm.corrects_by != NEVER_CLIPS)
        ),
        "algorithm.clip_low",
        "algorithm.clip_high",
    ),
    **_of(
        f"Only with the correction {', '.join(CAPS[:-1])} or {CAPS[-1]}.",
        lambda spec: spec.algorithm.corrects_by in CAPS,
        "algorithm.correction.cap",
    ),
    **_of(
        "Only with the correction icepop.",
        lambda spec: spec.algorithm.corrects_by == "icepop",
        "algorithm.correction.low",
        "algorithm.correction.high",
    ),
    **_of(
        "Only with a KL coefficient above 0.",
        lambda spec: spec.algorithm.kl.coefficient > 0,
        "algorithm.kl.estimator",
    ),
    **_of(
        "Only with the algorithm ppo, the only one with a critic.",
        lambda spec: spec.algorithm.name == "ppo",
        "algorithm.critic.learning_rate",
        "algorithm.critic.gamma",
        "algorithm.critic.gae_lambda",
    ),
    **_of(
        "Only with the algorithm ppo and several updates per step (training.mini_batches, training.passes): values do "
        "not change before the first update.",
        lambda spec: spec.algorithm.name == "ppo" and spec.training.updates_per_step > 1,
        "algorithm.critic.value_clip",
    ),
    **_of(
        "Only with a teacher (algorithm.teacher.source).",
        lambda spec: spec.algorithm.has_teacher,
        "algorithm.teacher.coefficient",
        "algorithm.teacher.reward_weight",
    ),
    **_of(
        "Not if the policy learns from the teacher only (algorithm.teacher.reward_weight 0).",
        lambda spec: spec.algorithm.learns_from_rewards,
        "algorithm.overlong_tokens",
    ),
    **_of(
        "Only if a group may be trained without a sample (algorithm.groups.on_failure train_rest or replace).",
        lambda spec: spec.algorithm.groups.on_failure != "drop",
        "algorithm.groups.min_group",
    ),
    **_of(
        "Except for constant, only in a job with more steps than optimizer.warmup_steps.",
        lambda spec: spec.training.steps > max(spec.optimizer.warmup_steps, 1) or spec.only_evaluates,
        "optimizer.course",
    ),
    **_of(
        "Only with optimizer.course cosine or linear.",
        lambda spec: spec.optimizer.course != "constant",
        "optimizer.final_share",
    ),
    **_of(
        "Not with the trainer deepspeed, which keeps moments in float32.",
        lambda spec: spec.trainer.backend != "deepspeed",
        "optimizer.moments",
    ),
    **_of(
        "Only on a GPU, and not with the trainer deepspeed.",
        lambda spec: spec.trainer.backend != "deepspeed",
        "optimizer.offload",
    ),
    **_of(
        "Not with the schedules sync, one_step and stream, which wait at a barrier.",
        lambda spec: SCHEDULES[spec.schedule.name].lead_steps is not None,
        "schedule.lead_steps",
    ),
    **_of(
        "Only with the schedule laminar, if a replica holds several versions (rollout.weight_slots).",
        lambda spec: spec.schedule.name == "laminar" and num_weight_slots(spec) > 1,
        "schedule.age_cap",
    ),
    **_of(
        "Only with the schedules laminar and paper.",
        lambda spec: SCHEDULES[spec.schedule.name].repacks,
        "schedule.repack",
    ),
    **_of(
        "Only with the schedule laminar.",
        lambda spec: spec.schedule.name == "laminar",
        "rollout.weight_slots",
    ),
    **_of(
        "Not with greedy held-out answers (evaluation.temperature 0), which are always the same.",
        lambda spec: spec.evaluation_sampling.temperature > 0,
        "evaluation.samples",
        "evaluation.top_p",
        "evaluation.top_k",
        "evaluation.min_p",
    ),
    **_of(
        "Only with the trainer deepspeed.",
        lambda spec: spec.trainer.backend == "deepspeed",
        "trainer.zero_stage",
    ),
    **_of(
        "Only with the trainer torch on several devices.",
        lambda spec: spec.trainer.backend == "torch" and (spec.trainer_devices > 1 or spec.only_evaluates),
        "trainer.sequence_parallel",
        "trainer.shard_within",
        "trainer.gradient_sums",
    ),
    **_of(
        "Only with a LoRA rank above 0.",
        lambda spec: spec.trainer.lora_rank > 0,
        "trainer.lora_alpha",
    ),
    **_of(
        "Only with rollout.engine vllm, which splits a model over devices; torch uses a single one.",
        lambda spec: spec.rollout.engine == "vllm",
        "resources.devices_per_replica",
    ),
    **_of(
        "Not with model.chat plain.",
        lambda spec: spec.model.chat != "plain",
        "model.chat_options",
        "model.history",
    ),
    **_of(
        "Only with the environments custom and graded.",
        lambda spec: bool(spec.environment.functions),
        "environment.code",
    ),
}


def conditional(default: Any, path: str, text: str, **bounds: Any) -> Any:
    """A field whose description is `text` and when the setting has an effect. `bounds`: those of pydantic's `Field`."""
    return Field(default, description=f"{text} {CONDITIONAL_SETTINGS[path].only}", **bounds)


def settings_without_effect(spec: "JobSpec") -> Iterator[tuple[str, str, object]]:
    """(path, message, value) of each setting that has another value than its default and no effect."""
    for path, effect in CONDITIONAL_SETTINGS.items():
        value, default = _given(spec, path)
        if value != default and not effect.acts(spec):
            instead = "leave it empty" if default in (None, "") else f"leave it at {default}"
            yield path, f"{path} has no effect in this job. {effect.only} Got {_shorten(value)}; {instead}.", value


def without_effect(spec: "JobSpec") -> dict[str, str]:
    """For each setting without effect in this job, whatever its value, the sentence about when it has one; by path."""
    return {path: effect.only for path, effect in CONDITIONAL_SETTINGS.items() if not effect.acts(spec)}


def _given(spec: BaseModel, path: str) -> tuple[Any, Any]:
    """A setting's value and its default."""
    *way, last = path.split(".")
    for step in way:
        spec = getattr(spec, step)
    return getattr(spec, last), type(spec).model_fields[last].default


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"
