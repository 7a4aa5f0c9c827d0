"""Conflicts: settings of a spec that conflict, each reported at its own path.

This module holds the rules over several fields; settings without effect come from `CONDITIONAL_SETTINGS`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic_core import InitErrorDetails, PydanticCustomError

from engine.spec.environments.params import wrong_params
from engine.spec.evaluation import MAX_ANSWERS
from engine.spec.recipes import RECIPES
from engine.spec.schedules import SCHEDULES
from engine.spec.settings.conditional import settings_without_effect
from engine.spec.slots import VLLM_RANKS, share_an_engine

if TYPE_CHECKING:
    from engine.spec.job import JobSpec


def find_conflicts(spec: "JobSpec") -> Iterator[InitErrorDetails]:
    if len(set(spec.tags)) != len(spec.tags):
        yield _conflict("tags", "must not contain duplicates", spec.tags)
    if spec.training.mini_batches > spec.training.prompts_per_step:
        most = spec.training.prompts_per_step
        rule = f"must be at most training.prompts_per_step, which is {most:,}: a prompt's group is not split"
        yield _conflict("training.mini_batches", rule, spec.training.mini_batches)
    if (slots := spec.rollout.weight_slots or 1) > 1 and spec.rollout.engine == "vllm" and not share_an_engine(spec):
        whose = f"which holds several versions of a LoRA adapter only (trainer.lora_rank 1 to {VLLM_RANKS[-1]})"
        rule = f"must be 1 with vllm, {whose}"
        yield _conflict("rollout.weight_slots", rule, slots)
    lead, bound = spec.schedule.lead_steps, spec.schedule.staleness_bound
    if lead is not None and lead > bound and SCHEDULES[spec.schedule.name].lead_steps is not None:
        rule = f"must be at most schedule.max_staleness, which is {bound}: samples started earlier would be dropped"
        yield _conflict("schedule.lead_steps", rule, lead)
    fewest = spec.placement.min_replicas
    if fewest is not None and fewest > spec.rollout.replicas:
        rule = f"must be at most rollout.replicas, which is {spec.rollout.replicas:,}"
        yield _conflict("placement.min_replicas", rule, fewest)
    if spec.resources.trainer_devices < 1 and not spec.only_evaluates:
        yield _conflict("resources.trainer_devices", "must be at least 1 unless training.steps is 0", 0)
    if (sharers := spec.trainer.sequence_parallel) > 1 and not spec.only_evaluates:
        if spec.trainer_devices % sharers:
            rule = f"must divide resources.trainer_devices, which is {spec.trainer_devices}"
            yield _conflict("trainer.sequence_parallel", rule, sharers)
        if spec.algorithm.name == "gspo":
            rule = "must be 1 with gspo: its ratio needs the whole answer on one device"
            yield _conflict("trainer.sequence_parallel", rule, sharers)
    yield from _check_evaluation(spec)
    yield from _check_groups(spec)
    yield from _check_correction(spec)
    yield from _check_teacher(spec)
    if spec.environment.functions and not spec.environment.code:
        rule = f"is required with the environment {spec.environment.name}: a Python file"
        yield _conflict("environment.code", rule, "")
    params = spec.environment.params
    for name, wrong in wrong_params(spec.environment.name, params):
        yield _error_at(f"environment.params.{name}", "environment_param", wrong, params.get(name, dict(params)))
    yield from (_error_at(path, "no_effect", message, value) for path, message, value in settings_without_effect(spec))


def _check_evaluation(spec: "JobSpec") -> Iterator[InitErrorDetails]:
    evaluation = spec.evaluation
    if evaluation.every > spec.training.steps:
        yield _conflict(
            "evaluation.every", f"must be at most training.steps, which is {spec.training.steps:,}", evaluation.every
        )
    if evaluation.prompts * evaluation.samples > MAX_ANSWERS:
        most = f"must be at most {MAX_ANSWERS // evaluation.prompts} with {evaluation.prompts:,} prompts"
        rule = f"{most}: an evaluation has at most {MAX_ANSWERS:,} answers"
        yield _conflict("evaluation.samples", rule, evaluation.samples)


def _check_groups(spec: "JobSpec") -> Iterator[InitErrorDetails]:
    algorithm, least = spec.algorithm, spec.algorithm.groups.min_group
    if least == 1 and algorithm.learns_from_rewards and RECIPES[algorithm.name].has_group_baseline:
        rule = f"must be at least 2 with {algorithm.name}: a single sample is its own baseline"
        yield _conflict("algorithm.groups.min_group", rule, least)


def _check_correction(spec: "JobSpec") -> Iterator[InitErrorDetails]:
    algorithm = spec.algorithm
    if algorithm.corrects_by == "aipo" and RECIPES[algorithm.name].ratio == "sequence":
        rule = (
            f"must not be aipo with {algorithm.name}: aipo compares the policy with itself, so the ratio of an answer "
            "is always 1; use algorithm.name grpo with aipo, which trains the same"
        )
        yield _conflict("algorithm.correction.name", rule, "aipo")


def _check_teacher(spec: "JobSpec") -> Iterator[InitErrorDetails]:
    algorithm = spec.algorithm
    if algorithm.learns_from_rewards:
        return
    if algorithm.name == "ppo":
        rule = "must be above 0 with ppo: its critic learns from rewards only"
        yield _conflict("algorithm.teacher.reward_weight", rule, algorithm.teacher.reward_weight)
    if algorithm.kl.coefficient and algorithm.kl.estimator == "k1":
        rule = "must be k2 or k3 with algorithm.teacher.reward_weight 0: k1 only changes the rewards"
        yield _conflict("algorithm.kl.estimator", rule, "k1")


def _conflict(path: str, rule: str, value: object) -> InitErrorDetails:
    got = f"; got {value:,}" if isinstance(value, int | float) else ""
    return _error_at(path, "does_not_fit", f"{path} {rule}{got}", value)


def _error_at(path: str, code: str, message: str, value: object) -> InitErrorDetails:
    error = PydanticCustomError(code, "{message}", {"message": message})
    return InitErrorDetails(type=error, loc=tuple(path.split(".")), input=value)
