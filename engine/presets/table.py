"""The table of presets: the settings of a job whose spec names only a model, on pools of several sizes."""

from collections.abc import Iterator
from typing import Final

from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.need import GB
from engine.fit.verdict import will_not_fit
from engine.presets.by_model import apply_presets
from engine.presets.by_pool import MEANS, PoolSize
from engine.spec.job import JobSpec
from engine.spec.settings.paths import value_at

NUM_DEVICES: Final = (1, 2, 8, 64)
HEAD: Final = ("model", "pool", "devices", "trainer", "replicas", "engine", "max_batch", "saves memory by", "fits")


def preset_table_lines(*, device_gb: float) -> Iterator[str]:
    rows = [HEAD, *_rows(device_gb)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _rows(device_gb: float) -> Iterator[tuple[str, ...]]:
    for model in KNOWN_CONFIGS:
        for num_devices in NUM_DEVICES:
            yield _row(model, PoolSize(num_devices=num_devices, device_bytes=int(device_gb * GB)))


def _row(model: str, pool: PoolSize) -> tuple[str, ...]:
    shape = known_shape(model)
    spec = apply_presets(JobSpec.model_validate({"name": model, "model": {"source": model}}), shape, pool)
    means = [f"{path} {value_at(spec, path)}" for path, default in MEANS.items() if value_at(spec, path) != default]
    return (
        model,
        str(pool.num_devices),
        str(spec.num_devices),
        str(spec.trainer_devices),
        f"{spec.rollout.replicas} of {spec.resources.devices_per_replica}",
        spec.rollout.engine,
        str(spec.rollout.max_batch),
        ", ".join(means) or "-",
        _verdict(spec, model, pool),
    )


def _verdict(spec: JobSpec, model: str, pool: PoolSize) -> str:
    if spec.num_devices > pool.num_devices:
        return f"no: needs {spec.num_devices} devices"
    misfit = will_not_fit(spec, known_shape(model), pool.device_bytes, num_devices=pool.num_devices)
    return "yes" if misfit is None else f"no: {misfit.advice}"
