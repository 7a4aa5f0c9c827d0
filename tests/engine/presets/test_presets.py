"""Presets: values by model for settings that a spec leaves out, each with its reason."""

from typing import Any

import pytest

from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.shape import ModelShape
from engine.presets import by_model
from engine.presets.by_model import PRESET_NUMBERS, active_presets, apply_presets, without_presets
from engine.presets.by_pool import PATHS_BY_POOL
from engine.presets.preset import Preset
from engine.spec.job import JobSpec
from engine.spec.settings.paths import is_set


def job(**parts: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "x", "model": {"source": "Qwen3-8B"}, **parts})


def values(spec: JobSpec, shape: ModelShape) -> dict[str, object]:
    return {preset.path: preset.value for preset in active_presets(spec, shape)}


QWEN = known_shape("Qwen3-8B")
SUBJECTS = {
    *("optimizer.learning_rate", "trainer.compute_dtype", "trainer.micro_batch_tokens", "rollout.max_new_tokens"),
    *("algorithm.clip_high", "algorithm.kl.coefficient", "schedule.name", "schedule.max_staleness"),
    *("environment.workers", "max_runtime_s"),
}


def test_presets_fill_settings_with_reasons() -> None:
    spec = apply_presets(job(), QWEN)
    active = active_presets(spec, QWEN)
    assert {preset.path for preset in active} == SUBJECTS and all(preset.reason.endswith(".") for preset in active)
    assert (spec.optimizer.learning_rate, spec.rollout.max_new_tokens) == (1e-6, 8_192)
    assert spec.trainer.micro_batch_tokens >= spec.rollout.max_new_tokens
    assert set(PRESET_NUMBERS) - set(PATHS_BY_POOL) <= SUBJECTS


@pytest.mark.parametrize(
    "explicit",
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
def test_explicit_setting_stays_even_if_it_is_the_default(explicit: dict[str, Any]) -> None:
    spec = apply_presets(job(**explicit), QWEN).model_dump()
    for section, settings in explicit.items():
        for name, value in settings.items():
            kept = spec[section][name]
            assert ({key: kept[key] for key in value} if isinstance(value, dict) else kept) == value


def test_filled_and_stored_spec_stays_unchanged() -> None:
    stored = apply_presets(job(), QWEN).model_dump(mode="json")
    assert apply_presets(JobSpec.accepted(stored), known_shape("Qwen3-0.6B")).model_dump(mode="json") == stored
    default = JobSpec.model_validate({"name": "x"}).model_dump(mode="json")
    assert apply_presets(JobSpec.accepted(default), QWEN).model_dump(mode="json") == default


def test_template_leaves_presets_to_the_model_chosen() -> None:
    template = without_presets(JobSpec.model_validate({"name": "x", "rollout": {"max_new_tokens": 80}}))
    spec = apply_presets(JobSpec.model_validate(template | {"model": {"source": "Qwen3-8B"}}), QWEN)
    assert (spec.optimizer.learning_rate, spec.rollout.max_new_tokens) == (1e-6, 80)


def test_small_or_unknown_model_has_the_defaults() -> None:
    small = ModelShape.of_config({**KNOWN_CONFIGS["Qwen3-0.6B"], "hidden_size": 64, "vocab_size": 500})
    for shape in (small, None):
        spec = job()
        assert apply_presets(spec, shape) is spec and active_presets(spec, shape) == ()
        assert spec.optimizer.learning_rate == 3e-4 and not is_set(spec, "optimizer.learning_rate")


def test_adapter_has_ten_times_the_learning_rate() -> None:
    rates = [apply_presets(job(trainer={"lora_rank": rank}), QWEN).optimizer.learning_rate for rank in (0, 16)]
    assert rates[1] == pytest.approx(10 * rates[0])


def test_thinking_family_answers_longer_within_half_the_context() -> None:
    config = KNOWN_CONFIGS["Qwen3-8B"]
    plain = ModelShape.of_config({**config, "model_type": "llama"})
    short = ModelShape.of_config({**config, "max_position_embeddings": 2_048})
    lengths = [apply_presets(job(), shape).rollout.max_new_tokens for shape in (QWEN, plain, short)]
    assert lengths[0] > lengths[1] and lengths[2] == 1_024
    small_cache = job(rollout={"kv_tokens": 4_096, "weight_slots": 2})
    assert apply_presets(small_cache, QWEN).rollout.max_new_tokens == 1_024


def test_preset_that_conflicts_with_the_spec_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Preset(path="rollout.max_new_tokens", value=-1, reason="wrong.")
    right = Preset(path="optimizer.learning_rate", value=1e-6, reason="right.")
    monkeypatch.setattr(by_model, "_presets", lambda *_: iter((wrong, right)))
    spec = apply_presets(job(), QWEN)
    assert (spec.rollout.max_new_tokens, spec.optimizer.learning_rate) == (80, 1e-6)


def test_longest_answer_fits_a_micro_batch() -> None:
    spec = apply_presets(job(rollout={"max_new_tokens": 30_000}), QWEN)
    assert spec.rollout.max_new_tokens == 30_000 and 30_000 < spec.trainer.micro_batch_tokens < 60_000


@pytest.mark.parametrize(("replicas", "max_batch", "workers"), [(1, 64, 1), (8, 64, 1), (8, 65, 2), (64, 512, 64)])
def test_environment_workers_follow_the_open_samples(replicas: int, max_batch: int, workers: int) -> None:
    spec = apply_presets(job(rollout={"replicas": replicas, "max_batch": max_batch}), QWEN)
    assert spec.environment.workers == workers
    assert apply_presets(job(environment={"workers": 3}), QWEN).environment.workers == 3


def test_critic_of_a_large_model_learns_slowly() -> None:
    ppo = job(algorithm={"name": "ppo"}, training={"mini_batches": 2})
    assert apply_presets(ppo, QWEN).algorithm.critic.learning_rate == 1e-5
    assert "algorithm.critic.learning_rate" not in values(apply_presets(job(), QWEN), QWEN)


def test_large_model_has_two_days_and_a_small_one_an_hour() -> None:
    assert apply_presets(job(), QWEN).max_runtime_s == 2 * 86_400
    assert apply_presets(job(), None).max_runtime_s == 3_600
    assert apply_presets(job(max_runtime_s=60), QWEN).max_runtime_s == 60


def test_clip_preset_needs_several_updates() -> None:
    once, twice = apply_presets(job(), QWEN), apply_presets(job(training={"mini_batches": 2}), QWEN)
    assert (once.algorithm.clips, twice.algorithm.clips) == ((0.2, 0.2), (0.2, 0.28))
    gspo = apply_presets(job(training={"mini_batches": 2}, algorithm={"name": "gspo"}), QWEN)
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
def test_valid_spec_stays_valid(name: str, parts: dict[str, Any]) -> None:
    spec = apply_presets(job(**parts), known_shape(name))
    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert set(values(spec, known_shape(name))) <= SUBJECTS
