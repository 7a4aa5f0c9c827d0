"""A job that names only a model fits its pool."""

from typing import Any

import pytest

from engine.fit.known_models import known_shape
from engine.fit.need import GB
from engine.fit.verdict import will_not_fit
from engine.presets.by_model import active_presets, apply_presets
from engine.presets.by_pool import PATHS_BY_POOL, PoolSize
from engine.spec.job import JobSpec
from engine.spec.settings.hints import hints_of

MODELS = ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B", "Qwen3-32B", "Qwen3-30B-A3B")


def pool(num_devices: int, *, has_vllm: bool = True) -> PoolSize:
    return PoolSize(num_devices=num_devices, device_bytes=80 * GB, has_vllm=has_vllm)


def spec_of(model: str, of: PoolSize, **explicit: Any) -> JobSpec:
    spec = JobSpec.model_validate({"name": "x", "model": {"source": model}, **explicit})
    return apply_presets(spec, known_shape(model), of)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_devices", [8, 64])
def test_job_that_names_only_a_model_fits_or_gets_advice(model: str, num_devices: int) -> None:
    spec = spec_of(model, pool(num_devices))
    assert spec.num_devices <= num_devices
    misfit = will_not_fit(spec, known_shape(model), 80 * GB, num_devices=num_devices)
    if misfit is not None:
        assert "train on" not in misfit.advice, "the pool has no more devices"
        assert num_devices < 16 and known_shape(model).num_weights > 30e9


def test_pool_that_is_too_small_is_refused_by_its_devices() -> None:
    spec = spec_of("Qwen3-32B", pool(2))
    assert spec.num_devices == 3, "more than the pool has: a job that could never start"
    assert spec_of("Qwen3-0.6B", pool(2)).num_devices == 2


def test_devices_follow_the_model() -> None:
    sizes = [
        (spec.resources.trainer_devices, spec.rollout.replicas, spec.resources.devices_per_replica)
        for spec in (spec_of(model, pool(64)) for model in MODELS)
    ]
    assert sizes == [(1, 1, 1), (1, 1, 1), (4, 4, 1), (16, 6, 2), (8, 3, 2)]


def test_large_model_uses_vllm_if_the_pool_has_it() -> None:
    assert spec_of("Qwen3-8B", pool(8)).rollout.engine == "vllm"
    assert spec_of("Qwen3-8B", pool(8, has_vllm=False)).rollout.engine == "torch"


def test_small_pool_saves_memory_without_an_adapter() -> None:
    spec = spec_of("Qwen3-30B-A3B", pool(8))
    assert (spec.resources.trainer_devices, spec.optimizer.offload, spec.trainer.lora_rank) == (4, True, 0)
    reasons = {preset.path: preset.reason for preset in active_presets(spec, known_shape("Qwen3-30B-A3B"), pool(8))}
    assert "moments in the host's memory" in reasons["optimizer.offload"]


def test_batch_grows_with_the_cache() -> None:
    short = spec_of("Qwen3-8B", pool(8), rollout={"max_new_tokens": 512})
    assert short.rollout.max_batch == 256 > spec_of("Qwen3-8B", pool(8)).rollout.max_batch >= 16


@pytest.mark.parametrize("model", MODELS)
def test_presets_leave_no_hint(model: str) -> None:
    assert hints_of(spec_of(model, pool(64))) == ()


def test_explicit_settings_stay() -> None:
    explicit: dict[str, Any] = {
        "rollout": {"engine": "torch", "replicas": 3, "max_batch": 7},
        "resources": {"trainer_devices": 2, "devices_per_replica": 1},
    }
    spec = spec_of("Qwen3-8B", pool(64), **explicit)
    for section, settings in explicit.items():
        assert spec.model_dump()[section].items() >= settings.items()


def test_every_preset_by_pool_has_a_reason() -> None:
    active = active_presets(spec_of("Qwen3-8B", pool(64)), known_shape("Qwen3-8B"), pool(64))
    reasons = {preset.path: preset.reason for preset in active}
    assert set(PATHS_BY_POOL) <= set(reasons) and all(reason.endswith(".") for reason in reasons.values())
