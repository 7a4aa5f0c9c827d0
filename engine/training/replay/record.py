"""The files of a recorded step.

    batch.safetensors     the trainer's input
    begin/                the checkpoint before the step
    computed.safetensors  log-probs, losses and gradient norms of each update on rank 0
    end/                  the checkpoint after the step
    record.json           settings, machine, and sha256 of every tensor of the four, in the order of computation

Invariant: `record.json` is written last; a folder without it is no recording.
"""

import hashlib
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError
from safetensors import safe_open
from torch import Tensor

from engine.spec.strict import Strict

BATCH_FILE: Final = "batch.safetensors"
COMPUTED_FILE: Final = "computed.safetensors"
BEGIN: Final = "begin"
END: Final = "end"
RECORD_FILE: Final = "record.json"
_LIBRARIES: Final = ("torch", "deepspeed", "transformers", "safetensors")


class Machine(Strict):
    """The properties of a machine that may change the last bit of a result."""

    processor: str
    threads: int
    versions: dict[str, str]

    @classmethod
    def here(cls) -> "Machine":
        return cls(
            processor=_read_processor(),
            threads=torch.get_num_threads(),
            versions={"python": platform.python_version(), **dict(_read_versions())},
        )

    def differences(self, other: "Machine") -> list[str]:
        lines = []
        if self.processor != other.processor:
            lines.append(f"recorded on {self.processor}, replayed on {other.processor}")
        for name in sorted(self.versions.keys() | other.versions.keys()):
            was, now = self.versions.get(name, "absent"), other.versions.get(name, "absent")
            if was != now:
                lines.append(f"{name} was {was} and is {now}")
        return lines


class StepRecord(Strict):
    step: int
    spec: dict[str, Any]
    model: str
    """The folder of the job's model."""
    num_ranks: int
    ranks_per_host: int | None = None
    """Of a trainer with a copy of its weights on each host."""
    machine: Machine
    not_deterministic: list[str] = []
    """Operations of the step that have no deterministic kernel on its device."""
    digests: dict[str, str]
    """Tensors' sha256 by location: `batch/reward`, `begin/model.safetensors/…`, `update 1, losses`, `end/…`."""


def read_record(folder: Path) -> StepRecord:
    try:
        return StepRecord.model_validate_json((folder / RECORD_FILE).read_bytes())
    except OSError as error:
        raise ValueError(f"{folder}: no recording of a step, {RECORD_FILE} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ValueError(f"{folder}: {RECORD_FILE} is from another version: {error}") from error


def inputs(folder: Path) -> Iterator[tuple[str, Tensor]]:
    yield from under("batch", _read_tensors(folder / BATCH_FILE))
    yield from _read_checkpoint(folder, BEGIN)


def outcome(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """In the order of computation: what rank 0 recorded, then moments, then weights."""
    yield from ((name.partition(" ")[2], tensor) for name, tensor in _read_tensors(folder / COMPUTED_FILE))
    yield from _read_checkpoint(folder, END)


def digest(tensor: Tensor) -> str:
    sha256 = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    sha256.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def under(name: str, tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    return ((f"{name}/{each}", tensor) for each, tensor in tensors)


def numbered(seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbers the names, since safetensors does not keep their order."""
    return {f"{number:04d} {name}": tensor for number, (name, tensor) in enumerate(seen.items())}


def _read_checkpoint(folder: Path, checkpoint: str) -> Iterator[tuple[str, Tensor]]:
    """Moments before weights, as an update computes them first."""
    files = sorted((folder / checkpoint).rglob("*.safetensors"), key=lambda file: (file.name.startswith("model"), file))
    for file in files:
        yield from under(file.relative_to(folder).as_posix(), _read_tensors(file))


def _read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Reads one tensor at a time, since a checkpoint may not fit into memory."""
    with safe_open(file, framework="pt") as stored:
        for name in sorted(stored.keys()):
            yield name, stored.get_tensor(name)


def _read_processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    names = [line.partition(":")[2].strip() for line in _read_cpu_lines() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"


def _read_cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def _read_versions() -> Iterator[tuple[str, str]]:
    for name in _LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue
