"""A model's name and a pool are enough for a job that fits."""

from typing import Any

import pytest

from engine.spec.fit.known_models import known_shape
from engine.spec.fit.need import GB
from engine.spec.fit.verdict import will_not_fit
from engine.spec.hints import hints_of
from engine.spec.job import JobSpec
from engine.spec.presets import filled, in_force
from engine.spec.presets_by_pool import PATHS_BY_POOL, PoolSize

MODELS = ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B", "Qwen3-32B", "Qwen3-30B-A3B")


def pool(num_devices: int, *, has_vllm: bool = True) -> PoolSize:
    return PoolSize(num_devices=num_devices, device_bytes=80 * GB, has_vllm=has_vllm)


def spec_of(model: str, of: PoolSize, **said: Any) -> JobSpec:
    named = JobSpec.model_validate({"name": "x", "model": {"source": model}, **said})
    return filled(named, known_shape(model), of)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_devices", [8, 64])
def test_job_of_a_name_fits_or_its_refusal_helps(model: str, num_devices: int) -> None:
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


def test_large_models_decode_with_vllm_where_it_is() -> None:
    assert spec_of("Qwen3-8B", pool(8)).rollout.engine == "vllm"
    assert spec_of("Qwen3-8B", pool(8, has_vllm=False)).rollout.engine == "torch"


def test_small_pool_trains_with_means_but_no_adapter() -> None:
    spec = spec_of("Qwen3-30B-A3B", pool(8))
    assert (spec.resources.trainer_devices, spec.optimizer.offload, spec.trainer.lora_rank) == (4, True, 0)
    told = {preset.path: preset.reason for preset in in_force(spec, known_shape("Qwen3-30B-A3B"), pool(8))}
    assert "moments in the host's memory" in told["optimizer.offload"]


def test_more_sequences_where_the_cache_has_room() -> None:
    short = spec_of("Qwen3-8B", pool(8), rollout={"max_new_tokens": 512})
    assert short.rollout.max_batch == 256 > spec_of("Qwen3-8B", pool(8)).rollout.max_batch >= 16


@pytest.mark.parametrize("model", MODELS)
def test_presets_leave_no_hint(model: str) -> None:
    assert hints_of(spec_of(model, pool(64))) == ()


def test_what_is_said_stays() -> None:
    said: dict[str, Any] = {
        "rollout": {"engine": "torch", "replicas": 3, "max_batch": 7},
        "resources": {"trainer_devices": 2, "devices_per_replica": 1},
    }
    spec = spec_of("Qwen3-8B", pool(64), **said)
    for section, settings in said.items():
        assert spec.model_dump()[section].items() >= settings.items()


def test_every_preset_by_pool_says_why() -> None:
    told = in_force(spec_of("Qwen3-8B", pool(64)), known_shape("Qwen3-8B"), pool(64))
    reasons = {preset.path: preset.reason for preset in told}
    assert set(PATHS_BY_POOL) <= set(reasons) and all(reason.endswith(".") for reason in reasons.values())
