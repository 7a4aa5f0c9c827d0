"""A setting without effect is refused with a reason; one with an effect is accepted."""

from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from engine.spec.job import JobSpec
from engine.spec.recipes import CorrectionName
from engine.spec.settings.conditional import CONDITIONAL_SETTINGS, without_effect

CUSTOM = {"name": "custom", "code": "def prompt(): ..."}

# Path, a value other than the default, a job in which the setting has an effect (None: no such job yet).
SOMEWHERE: list[tuple[str, object, dict[str, Any] | None]] = [
    ("algorithm.clip_low", 0.1, {"algorithm": {"correction": {"name": "none"}}}),
    ("algorithm.clip_high", 0.3, {"algorithm": {"correction": {"name": "a3po"}}}),
    ("algorithm.correction.cap", 3.0, {"algorithm": {"correction": {"name": "truncated"}}}),
    ("algorithm.correction.low", 0.4, {"algorithm": {"correction": {"name": "icepop"}}}),
    ("algorithm.correction.high", 4.0, {"algorithm": {"correction": {"name": "icepop"}}}),
    ("algorithm.groups.min_group", 3, {"algorithm": {"groups": {"on_failure": "replace"}}}),
    ("algorithm.kl.estimator", "k2", {"algorithm": {"kl": {"coefficient": 0.1}}}),
    ("algorithm.teacher.coefficient", 2.0, {"algorithm": {"teacher": {"source": "demo"}}}),
    ("algorithm.teacher.reward_weight", 0.0, {"algorithm": {"teacher": {"source": "demo"}}}),
    ("algorithm.overlong_tokens", 20, {"algorithm": {"teacher": {"source": "demo", "reward_weight": 0.5}}}),
    ("algorithm.critic.learning_rate", 1e-4, {"algorithm": {"name": "ppo"}}),
    ("algorithm.critic.gamma", 0.9, {"algorithm": {"name": "ppo"}}),
    ("algorithm.critic.gae_lambda", 0.9, {"algorithm": {"name": "ppo"}}),
    ("algorithm.critic.value_clip", 0.5, {"algorithm": {"name": "ppo"}, "training": {"passes": 2}}),
    ("optimizer.course", "cosine", {"training": {"steps": 6}}),
    ("optimizer.final_share", 0.0, {"optimizer": {"course": "linear"}}),
    ("optimizer.moments", "bfloat16", {"trainer": {"backend": "torch"}}),
    ("optimizer.offload", True, {"trainer": {"backend": "torch"}}),
    ("schedule.lead_steps", 1.5, {"schedule": {"name": "inflight"}}),
    ("schedule.age_cap", 2, {"schedule": {"name": "laminar"}}),
    ("schedule.repack", False, {"schedule": {"name": "paper"}}),
    ("rollout.weight_slots", 3, {"schedule": {"name": "laminar"}}),
    ("evaluation.samples", 4, {"evaluation": {"temperature": 0.6}}),
    ("evaluation.top_p", 0.95, {"evaluation": {"temperature": 0.6}}),
    ("evaluation.top_k", 20, {"evaluation": {}}),
    ("evaluation.min_p", 0.1, {"evaluation": {}}),
    ("trainer.zero_stage", 3, {"trainer": {"backend": "deepspeed"}}),
    ("trainer.sequence_parallel", 2, {"resources": {"trainer_devices": 4}}),
    ("trainer.shard_within", "node", {"resources": {"trainer_devices": 4}}),
    ("trainer.gradient_sums", "update", {"resources": {"trainer_devices": 4}}),
    ("trainer.lora_alpha", 16.0, {"trainer": {"lora_rank": 8}}),
    ("resources.devices_per_replica", 2, {"rollout": {"engine": "vllm"}}),
    ("model.chat_options", {"enable_thinking": False}, {"model": {"chat": "template"}}),
    ("model.history", "as_generated", {"model": {"chat": "template"}}),
    ("environment.code", CUSTOM["code"], {"environment": {"name": "custom"}}),
]
# Jobs in which these settings have no effect; for the others the default job is one.
NOWHERE: dict[str, dict[str, Any]] = {
    "model.chat_options": {"model": {"chat": "plain"}},
    "model.history": {"model": {"chat": "plain"}},
    "algorithm.correction.cap": {"algorithm": {"correction": {"name": "none"}}},
    "algorithm.overlong_tokens": {"algorithm": {"teacher": {"source": "demo", "reward_weight": 0}}},
    "algorithm.groups.min_group": {"algorithm": {"groups": {"on_failure": "drop"}}},
    "optimizer.course": {"training": {"steps": 5}},
    "optimizer.moments": {"trainer": {"backend": "deepspeed"}},
    "optimizer.offload": {"trainer": {"backend": "deepspeed"}},
    "schedule.lead_steps": {"schedule": {"name": "one_step"}},
    "schedule.age_cap": {"rollout": {"engine": "vllm"}},
    "schedule.repack": {"schedule": {"name": "sync"}},
    "rollout.weight_slots": {"schedule": {"name": "partial"}},
    **{f"evaluation.{name}": {"evaluation": {"temperature": 0}} for name in ("samples", "top_p", "top_k", "min_p")},
}


def with_value(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    step, _, rest = path.partition(".")
    below = with_value(dict(document.get(step, {})), rest, value) if rest else value
    return {**document, step: below}


def refusals(document: dict[str, Any]) -> dict[str, str]:
    try:
        JobSpec.model_validate({"name": "t", **document})
    except ValidationError as failure:
        return {".".join(map(str, error["loc"])): error["msg"] for error in failure.errors()}
    return {}


def test_every_row_has_a_case() -> None:
    assert sorted(path for path, *_ in SOMEWHERE) == sorted(CONDITIONAL_SETTINGS)


@pytest.mark.parametrize(("path", "value", "acts"), SOMEWHERE, ids=[path for path, *_ in SOMEWHERE])
def test_setting_is_refused_only_where_it_has_no_effect(path: str, value: object, acts: dict[str, Any] | None) -> None:
    nowhere: dict[str, Any] = NOWHERE.get(path, {})
    errors = refusals(with_value(nowhere, path, value))
    assert list(errors) == [path]
    assert errors[path].startswith(f"{path} has no effect in this job. {CONDITIONAL_SETTINGS[path].only} Got ")
    assert "; leave it " in errors[path]
    if acts is not None:
        assert refusals(with_value(acts, path, value)) == {}


JOBS: list[dict[str, Any]] = [{}, *(acts for *_, acts in SOMEWHERE if acts is not None), *NOWHERE.values()]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_form_disables_exactly_what_a_spec_is_refused_for(job: dict[str, Any]) -> None:
    code = {"environment": {"name": "custom", "code": CUSTOM["code"]}} if "environment" in job else {}
    spec = JobSpec.model_validate({"name": "t", **job, **code})
    off = without_effect(spec)
    for path, value, _ in SOMEWHERE:
        error = refusals(with_value({**job, **code}, path, value)).get(path, "")
        assert (path in off) == error.startswith(f"{path} has no effect"), path


def test_all_misfits_are_reported_together() -> None:
    document = {"tags": ["a", "a"], "trainer": {"zero_stage": 1, "lora_alpha": 1.0}, "evaluation": {"every": 1_000}}
    assert set(refusals(document)) == {"tags", "evaluation.every", "trainer.zero_stage", "trainer.lora_alpha"}


def test_explicit_defaults_are_accepted() -> None:
    spec = JobSpec(name="t")
    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_deepspeed_refuses_small_moments() -> None:
    for moments in ("bfloat16", "float8"):
        settings = {"optimizer": {"moments": moments}}
        assert refusals(settings) == {}
        assert list(refusals(settings | {"trainer": {"backend": "deepspeed"}})) == ["optimizer.moments"]


def test_cispo_clip_has_an_effect_and_its_cap_has_none() -> None:
    assert refusals({"algorithm": {"name": "cispo", "clip_high": 7.0}}) == {}
    assert list(refusals({"algorithm": {"name": "cispo", "correction": {"cap": 3.0}}})) == ["algorithm.correction.cap"]


@pytest.mark.parametrize("updates", [{"mini_batches": 2}, {"passes": 2}])
def test_several_updates_give_clips_an_effect_except_with_aipo(updates: dict[str, int]) -> None:
    for name in ("truncated", "masked", "icepop", "decoupled"):
        clipped: dict[str, Any] = {"algorithm": {"clip_low": 0.1, "clip_high": 0.3, "correction": {"name": name}}}
        assert refusals(clipped | {"training": updates}) == {}
        assert set(refusals(clipped)) == {"algorithm.clip_low", "algorithm.clip_high"}
    aipo = {"algorithm": {"clip_low": 0.1, "correction": {"name": "aipo"}}, "training": updates}
    assert list(refusals(aipo)) == ["algorithm.clip_low"]


def test_teacher_only_needs_no_baseline_and_refuses_reward_terms() -> None:
    alone: dict[str, Any] = {"teacher": {"source": "demo", "reward_weight": 0}, "group_size": 1}
    assert refusals({"algorithm": alone}) == {}
    assert list(refusals({"algorithm": alone | {"name": "ppo"}})) == ["algorithm.teacher.reward_weight"]
    k1 = {"kl": {"coefficient": 0.1, "estimator": "k1"}}
    assert list(refusals({"algorithm": alone | k1})) == ["algorithm.kl.estimator"]
    both = {"teacher": {"source": "demo"}}
    assert refusals({"algorithm": both | k1}) == {} == refusals({"algorithm": both | {"name": "ppo"}})
    assert "algorithm" in refusals({"algorithm": both | {"group_size": 1}}), "rewards still need a baseline"


@pytest.mark.parametrize(("name", "accepted"), [("grpo", False), ("rloo", False), ("reinforce_pp", True)])
def test_group_of_one_is_refused_if_the_mean_is_the_baseline(name: str, accepted: bool) -> None:
    refused = refusals({"algorithm": {"name": name, "groups": {"min_group": 1}}})
    assert list(refused) == ([] if accepted else ["algorithm.groups.min_group"])


@pytest.mark.parametrize("correction", get_args(CorrectionName))
def test_gspo_accepts_every_correction_but_aipo(correction: CorrectionName) -> None:
    settings: dict[str, Any] = {"correction": {"name": correction}, "teacher": {"source": "demo"}}
    refused = refusals({"algorithm": settings | {"name": "gspo"}})
    assert list(refused) == (["algorithm.correction.name"] if correction == "aipo" else [])
    if refused:
        assert refused["algorithm.correction.name"].endswith("use algorithm.name grpo with aipo, which trains the same")
        assert refusals({"algorithm": settings | {"name": "grpo"}}) == {}


def test_value_clip_needs_several_updates() -> None:
    ppo: dict[str, Any] = {"algorithm": {"name": "ppo", "critic": {"value_clip": 0.5}}}
    assert list(refusals(ppo)) == ["algorithm.critic.value_clip"]
    assert refusals(ppo | {"training": {"mini_batches": 16}}) == {}


def test_mini_batches_beyond_the_prompts_are_refused() -> None:
    assert refusals({"training": {"prompts_per_step": 4, "mini_batches": 4}}) == {}
    errors = refusals({"training": {"prompts_per_step": 4, "mini_batches": 5}})
    assert list(errors) == ["training.mini_batches"]
    assert errors["training.mini_batches"].startswith("training.mini_batches must be at most training.prompts_per_step")


def test_settings_of_the_paper_are_accepted() -> None:
    """512 prompts of 16 trajectories, 2,048 trajectories per update."""
    paper = {"algorithm": {"group_size": 16}, "training": {"prompts_per_step": 512, "mini_batches": 4}}
    assert refusals(paper) == {}


def test_sequence_parallel_divides_devices_and_excludes_gspo() -> None:
    def wrong_paths(sharers: int, devices: int, algorithm: str = "grpo") -> list[str]:
        trainer, resources = {"sequence_parallel": sharers}, {"trainer_devices": devices}
        return list(refusals({"trainer": trainer, "resources": resources, "algorithm": {"name": algorithm}}))

    assert wrong_paths(2, 4) == wrong_paths(4, 4) == []
    assert wrong_paths(3, 4) == wrong_paths(8, 4) == wrong_paths(2, 2, "gspo") == ["trainer.sequence_parallel"]


def test_evaluation_only_job_may_keep_trainer_devices() -> None:
    assert refusals({"training": {"steps": 0}, "resources": {"trainer_devices": 4}}) == {}


def test_job_without_steps_only_evaluates_once() -> None:
    assert JobSpec.model_validate({"name": "e", "training": {"steps": 0}}).only_evaluates
    assert not JobSpec.model_validate({"name": "e", "training": {"steps": 1}}).only_evaluates
    assert list(refusals({"training": {"steps": 0}, "evaluation": {"every": 1}})) == ["evaluation.every"]


def test_accepted_spec_is_read_without_misfit_rules() -> None:
    document = {"name": "t", "trainer": {"zero_stage": 3}, "tags": ["a", "a"]}
    accepted = JobSpec.accepted(document)
    assert accepted.trainer.zero_stage == 3
    assert JobSpec.accepted(accepted.model_dump(mode="json")) == accepted
    with pytest.raises(ValidationError):
        JobSpec.accepted({"name": "t", "trainer": {"zero_stage": 4}})


def test_course_needs_a_step_after_the_warmup() -> None:
    cosine = {"course": "cosine", "warmup_steps": 0}
    assert list(refusals({"training": {"steps": 1}, "optimizer": cosine})) == ["optimizer.course"]
    assert refusals({"training": {"steps": 2}, "optimizer": cosine}) == {}
    assert refusals({"training": {"steps": 0}, "optimizer": {**cosine, "final_share": 0.0}}) == {}


@pytest.mark.parametrize("path", CONDITIONAL_SETTINGS)
def test_description_says_when_a_setting_has_an_effect(path: str) -> None:
    *way, last = path.split(".")
    model: type[BaseModel] = JobSpec
    for step in way:
        below = model.model_fields[step].annotation
        assert isinstance(below, type) and issubclass(below, BaseModel)
        model = below
    documented = JobSpec.model_json_schema()["$defs"][model.__name__]["properties"][last]["description"]
    assert documented.endswith(CONDITIONAL_SETTINGS[path].only)


def test_torch_replica_of_two_devices_is_refused() -> None:
    spec = {"name": "t", "rollout": {"engine": "torch"}, "resources": {"devices_per_replica": 2}}
    with pytest.raises(
        ValidationError, match=r"devices_per_replica has no effect .* single one\. Got 2; leave it at 1"
    ):
        JobSpec.model_validate(spec)
