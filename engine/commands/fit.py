"""`python -m engine fit [SPEC.json]`: whether a job fits, line by line; without a spec, which models fit where.

No weights are loaded and no device is used: only a model's config.json is read.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from engine.fit.backends import backend_lines, host_lines, sum_lines
from engine.fit.durations.limits import longest_step_s
from engine.fit.durations.step import DEVICES, Device, StepWork, least_generation_s, least_training_s, step_work
from engine.fit.hosts import keeps_deltas, relay_host_need, trainer_host_need, version_bytes
from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.need import GB, Need
from engine.fit.plan import DEVICES_PER_HOST, PROMPT_TOKENS, longest_tokens
from engine.fit.planning import plan_trainer
from engine.fit.replica import ReplicaPlan, replica_need
from engine.fit.shape import ModelShape
from engine.fit.shared_memory import OBJECT_STORE_BYTES, shared_memory_need, size_setting
from engine.fit.table import table_lines
from engine.fit.trainer import trainer_need
from engine.fit.verdict import replica_misfit, trainer_misfit
from engine.presets.by_model import apply_presets
from engine.presets.table import preset_table_lines
from engine.spec.environments.workers import line_on_workers
from engine.spec.job import JobSpec
from engine.spec.settings.invalid_fields import error_lines

DEMO_FOLDER: Final = Path(__file__).parents[1] / "models" / "demo"


def fit(words: Sequence[str]) -> int:
    """`words`: the arguments after `python -m engine fit`. Returns 0: fits; 1: does not fit; 2: wrong input."""
    parser = argparse.ArgumentParser(prog="python -m engine fit", description=__doc__)
    parser.add_argument("spec", nargs="?", type=Path, help="a JobSpec as JSON; without it, a table of known models")
    parser.add_argument("--device-gb", type=float, default=80.0, help="memory per device, in 10^9 bytes (80)")
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS, help="the longest prompt, in tokens")
    parser.add_argument(
        "--devices-per-host",
        type=int,
        default=DEVICES_PER_HOST,
        help=f"devices of a trainer's host ({DEVICES_PER_HOST})",
    )
    parser.add_argument(
        "--model", default=None, help=f"instead of the spec's model: {', '.join(KNOWN_CONFIGS)}, or a folder"
    )
    parser.add_argument("--presets", action="store_true", help="print the presets of each model by pool size")
    arguments = parser.parse_args(words)
    if arguments.presets:
        _say(preset_table_lines(device_gb=arguments.device_gb))
        return 0
    if arguments.spec is None:
        _say(table_lines())
        return 0
    try:
        spec = JobSpec.model_validate_json(arguments.spec.read_bytes())
        shape = shape_of(arguments.model or spec.model.source)
        spec = apply_presets(spec, shape)
        teacher = shape_of(spec.algorithm.teacher.source) if spec.algorithm.has_teacher else None
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}")
    except ValidationError as error:
        return _refuse("\n  ".join((f"{arguments.spec} is not a valid job spec:", *error_lines(error, whole="spec"))))
    except ValueError as error:
        return _refuse(str(error))
    device_bytes, prompt_tokens = int(arguments.device_gb * GB), arguments.prompt_tokens
    of_trainer: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "teacher": teacher,
        "devices_per_host": arguments.devices_per_host,
    }
    _say(arithmetic(spec, shape, device_bytes, **of_trainer))
    verdicts = [
        trainer_misfit(spec, shape, device_bytes, **of_trainer),
        replica_misfit(spec, shape, device_bytes, prompt_tokens=prompt_tokens),
    ]
    misfits = [verdict for verdict in verdicts if verdict is not None]
    _say([misfit.sentence for misfit in misfits] or [f"It fits devices of {arguments.device_gb:g} GB."])
    return 1 if misfits else 0


def shape_of(source: str) -> ModelShape:
    """The shape of a model: a folder, the built-in one, or a public one by name. Raises `ValueError`, `OSError`."""
    if source in KNOWN_CONFIGS:
        return known_shape(source)
    folder = DEMO_FOLDER if source == "demo" else Path(source)
    return ModelShape.of_config(json.loads((folder / "config.json").read_text()))


def shape_if_known(source: str) -> ModelShape | None:
    try:
        return shape_of(source)
    except (OSError, ValueError):  # the engine reports the error when it loads the model
        return None


def arithmetic(
    spec: JobSpec,
    shape: ModelShape,
    device_bytes: int,
    *,
    prompt_tokens: int,
    teacher: ModelShape | None = None,
    devices_per_host: int = DEVICES_PER_HOST,
) -> Iterator[str]:
    of_trainer: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "teacher": teacher,
        "devices_per_host": devices_per_host,
    }
    plan = plan_trainer(spec, shape, **of_trainer)
    replica = ReplicaPlan.of_spec(spec, shape, prompt_tokens=prompt_tokens)
    needs = [replica_need(shape, replica), _relay_hosts(spec, shape)]
    if not spec.only_evaluates:
        needs = [trainer_need(shape, plan), trainer_host_need(shape, plan), *needs]
    longest = longest_tokens(spec, shape, prompt_tokens=prompt_tokens)
    yield f"{shape.num_weights:,} weights; a sequence has at most {longest:,} tokens, {prompt_tokens:,} of them prompt"
    for need in needs:
        yield ""
        yield from need.lines
    rank = spec.trainer.lora_rank
    shared = shared_memory_need(
        version_bytes(shape, rank),
        keeps_deltas=keeps_deltas(rank, spec.rollout.replicas),
        object_store_bytes=OBJECT_STORE_BYTES,
    )
    yield from ("", *shared.lines, f"  Set LAMINAR_RAY_SHM={size_setting(shared.num_bytes)} or more there.")
    if lines := backend_lines(spec, shape, prompt_tokens=prompt_tokens, teacher=teacher):
        yield from ("", *lines)
    if lines := sum_lines(spec, shape, plan, device_bytes):
        yield from ("", *lines)
    if lines := host_lines(spec, shape, **of_trainer, device_bytes=device_bytes):
        yield from ("", *lines)
    yield from ("", line_on_workers(spec), "")
    work = step_work(spec, shape, prompt_tokens=prompt_tokens, teacher=teacher)
    for device in DEVICES:
        if device.memory_bytes == device_bytes:
            yield _duration(spec, work, device)
    slowest_s = longest_step_s(spec, shape, prompt_tokens=prompt_tokens, teacher=teacher)
    yield (
        f"At the slowest rate of a working GPU, training a step takes {slowest_s:,.0f} s: a shorter limit may stop "
        "a healthy job."
    )


def _relay_hosts(spec: JobSpec, shape: ModelShape) -> Need:
    return relay_host_need(shape, lora_rank=spec.trainer.lora_rank, num_relays=spec.rollout.replicas)  # an upper bound


def _duration(spec: JobSpec, work: StepWork, device: Device) -> str:
    training_s = least_training_s(work, device, num_devices=max(spec.trainer_devices, 1))
    generation_s = least_generation_s(work, device, num_replicas=spec.rollout.replicas)
    return (
        f"On {device.name}s a step whose answers all reach the length limit trains for at least {training_s:,.1f} s "
        f"({work.training_flops:.3g} flop) and generates for at least {generation_s:,.1f} s."
    )


def _say(lines: Sequence[str] | Iterator[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _refuse(problem: str) -> int:
    sys.stderr.write(f"{problem}\n")
    return 2
