"""Presets: what a job gets by its model, for what its spec does not say, each with its reason."""

from typing import Any

import pytest

from engine.spec import presets
from engine.spec.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.spec.fit.shape import ModelShape
from engine.spec.job import JobSpec
from engine.spec.preset import Preset, says
from engine.spec.presets import PRESET_NUMBERS, as_said, filled, in_force
from engine.spec.presets_by_pool import PATHS_BY_POOL


def job(**parts: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "x", "model": {"source": "Qwen3-8B"}, **parts})


def values(spec: JobSpec, shape: ModelShape) -> dict[str, object]:
    return {preset.path: preset.value for preset in in_force(spec, shape)}


QWEN = known_shape("Qwen3-8B")
SUBJECTS = {
    *("optimizer.learning_rate", "trainer.compute_dtype", "trainer.micro_batch_tokens", "rollout.max_new_tokens"),
    *("algorithm.clip_high", "algorithm.kl.coefficient", "schedule.name", "schedule.max_staleness"),
    *("environment.workers", "max_runtime_s"),
}


def test_each_setting_that_depends_on_the_model_is_filled_with_its_reason() -> None:
    spec = filled(job(), QWEN)
    told = in_force(spec, QWEN)
    assert {preset.path for preset in told} == SUBJECTS and all(preset.reason.endswith(".") for preset in told)
    assert (spec.optimizer.learning_rate, spec.rollout.max_new_tokens) == (1e-6, 8_192)
    assert spec.trainer.micro_batch_tokens >= spec.rollout.max_new_tokens
    assert set(PRESET_NUMBERS) - set(PATHS_BY_POOL) <= SUBJECTS


@pytest.mark.parametrize(
    "said",
    [
        {"optimizer": {"learning_rate": 3e-4}, "rollout": {"max_new_tokens": 80}},
        {
            "trainer": {"micro_batch_tokens": 8_192},
            "schedule": {"name": "sync"},
            "algorithm": {"kl": {"coefficient": 1}},
        },
        {"optimizer": {}, "trainer": {"compute_dtype": "float32"}, "schedule": {"max_staleness": 0}},
    ],
)
def test_what_a_spec_says_stays_also_where_it_says_a_default(said: dict[str, Any]) -> None:
    spec = filled(job(**said), QWEN).model_dump()
    for section, settings in said.items():
        for name, value in settings.items():
            kept = spec[section][name]
            assert ({key: kept[key] for key in value} if isinstance(value, dict) else kept) == value


def test_a_spec_that_was_filled_once_stays_as_it_is_also_when_it_was_stored() -> None:
    stored = filled(job(), QWEN).model_dump(mode="json")
    assert filled(JobSpec.accepted(stored), known_shape("Qwen3-0.6B")).model_dump(mode="json") == stored
    default = JobSpec.model_validate({"name": "x"}).model_dump(mode="json")
    assert filled(JobSpec.accepted(default), QWEN).model_dump(mode="json") == default


def test_a_template_that_leaves_something_to_its_model_leaves_it_to_another_one_too() -> None:
    said = as_said(JobSpec.model_validate({"name": "x", "rollout": {"max_new_tokens": 80}}))
    spec = filled(JobSpec.model_validate(said | {"model": {"source": "Qwen3-8B"}}), QWEN)
    assert (spec.optimizer.learning_rate, spec.rollout.max_new_tokens) == (1e-6, 80)


def test_a_small_model_and_one_that_is_not_known_have_the_defaults() -> None:
    small = ModelShape.of_config({**KNOWN_CONFIGS["Qwen3-0.6B"], "hidden_size": 64, "vocab_size": 500})
    for shape in (small, None):
        spec = job()
        assert filled(spec, shape) is spec and in_force(spec, shape) == ()
        assert spec.optimizer.learning_rate == 3e-4 and not says(spec, "optimizer.learning_rate")


def test_an_adapter_learns_ten_times_as_fast_as_all_weights() -> None:
    rates = [filled(job(trainer={"lora_rank": rank}), QWEN).optimizer.learning_rate for rank in (0, 16)]
    assert rates[1] == pytest.approx(10 * rates[0])


def test_a_family_that_thinks_may_say_more_and_none_more_than_half_of_its_context() -> None:
    config = KNOWN_CONFIGS["Qwen3-8B"]
    plain = ModelShape.of_config({**config, "model_type": "llama"})
    short = ModelShape.of_config({**config, "max_position_embeddings": 2_048})
    said = [filled(job(), shape).rollout.max_new_tokens for shape in (QWEN, plain, short)]
    assert said[0] > said[1] and said[2] == 1_024
    small_cache = job(rollout={"kv_tokens": 4_096, "weight_slots": 2})
    assert filled(small_cache, QWEN).rollout.max_new_tokens == 1_024


def test_a_preset_that_does_not_fit_the_spec_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Preset(path="rollout.max_new_tokens", value=-1, reason="wrong.")
    right = Preset(path="optimizer.learning_rate", value=1e-6, reason="right.")
    monkeypatch.setattr(presets, "_presets", lambda *_: iter((wrong, right)))
    spec = filled(job(), QWEN)
    assert (spec.rollout.max_new_tokens, spec.optimizer.learning_rate) == (80, 1e-6)


def test_the_longest_answer_that_the_spec_allows_fits_a_micro_batch() -> None:
    spec = filled(job(rollout={"max_new_tokens": 30_000}), QWEN)
    assert spec.rollout.max_new_tokens == 30_000 and 30_000 < spec.trainer.micro_batch_tokens < 60_000


@pytest.mark.parametrize(("replicas", "max_batch", "workers"), [(1, 64, 1), (8, 64, 1), (8, 65, 2), (64, 512, 64)])
def test_environment_workers_follow_the_open_samples(replicas: int, max_batch: int, workers: int) -> None:
    spec = filled(job(rollout={"replicas": replicas, "max_batch": max_batch}), QWEN)
    assert spec.environment.workers == workers
    assert filled(job(environment={"workers": 3}), QWEN).environment.workers == 3


def test_critic_of_a_large_model_learns_slowly() -> None:
    ppo = job(algorithm={"name": "ppo"}, training={"mini_batches": 2})
    assert filled(ppo, QWEN).algorithm.critic.learning_rate == 1e-5
    assert "algorithm.critic.learning_rate" not in values(filled(job(), QWEN), QWEN)


def test_large_model_has_two_days_and_a_small_one_an_hour() -> None:
    assert filled(job(), QWEN).max_runtime_s == 2 * 86_400
    assert filled(job(), None).max_runtime_s == 3_600
    assert filled(job(max_runtime_s=60), QWEN).max_runtime_s == 60


def test_a_clip_is_set_only_where_it_is_reached() -> None:
    once, twice = filled(job(), QWEN), filled(job(training={"mini_batches": 2}), QWEN)
    assert (once.algorithm.clips, twice.algorithm.clips) == ((0.2, 0.2), (0.2, 0.28))
    gspo = filled(job(training={"mini_batches": 2}, algorithm={"name": "gspo"}), QWEN)
    assert gspo.algorithm.clips == (3e-4, 4e-4)


@pytest.mark.parametrize("name", KNOWN_CONFIGS)
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"training": {"steps": 0}},
        {"algorithm": {"overlong_tokens": 60}},
        {"algorithm": {"teacher": {"source": "Qwen3-32B", "reward_weight": 0}}},
        {"resources": {"trainer_devices": 2}, "trainer": {"backend": "deepspeed"}},
    ],
)
def test_a_valid_spec_stays_one(name: str, parts: dict[str, Any]) -> None:
    spec = filled(job(**parts), known_shape(name))
    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert set(values(spec, known_shape(name))) <= SUBJECTS
