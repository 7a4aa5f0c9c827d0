"""Adapters as versions: low-rank updates in peft's layout, which the installing process adds to the base.

    version   A (rank × columns) and B (rows × rank) of each adapted matrix, float32
    base      the job's model folder, which trainer and replicas have read already
    matrix    base + scale · B A, in float32, rounded to the folder's dtype

Invariants:
- a replica has the same bits as the trainer's merged weights if both multiply alike (on a CPU, or on GPUs of one kind):
  both use this function, a matrix at a time, in the same order;
- a version is added only to the base that it was trained on, never to another version;
- the base is read from its files, which the host's page cache holds: there is no second copy.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor

from engine.models.loading import read_config, weight_files
from engine.models.pieces import read_tensor
from engine.process.progress import working
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights

_A, _B = ".lora_A.weight", ".lora_B.weight"
LARGEST_ITEM: Final = 4  # bytes of a weight, in any supported dtype
_PREFIX: Final = "base_model.model."
TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The matrices that adapters may change, except those of experts."""


def add_low_rank(weight: Tensor, a: Sequence[Tensor], b: Sequence[Tensor], *, scale: float) -> Tensor:
    """A pair of matrices for each block of rows. Sums in float32 even for bfloat16 inputs: rounding to bfloat16 would
    lose small updates."""
    with torch.autocast(weight.device.type, enabled=False):
        update = torch.cat([each_b.float() @ each_a.float() for each_a, each_b in zip(a, b, strict=True)])
        return weight + scale * update


def names_of(module: str) -> tuple[str, str]:
    """The names of A and B in peft's file."""
    return f"{_PREFIX}{module}{_A}", f"{_PREFIX}{module}{_B}"


def fingerprint(folder: Path) -> str:
    """Identifies a model's weights by every tensor's name, dtype and shape, and its first and last row. That detects
    another model, or the same one trained further; a hash of all 16 GB would take seconds and detect no more."""
    digest = hashlib.sha256()
    with ExitStack() as files:
        stored = _open_tensors(folder, files)
        for name in sorted(stored):
            rows = stored[name].get_slice(name)
            shape = rows.get_shape()
            digest.update(f"{name} {rows.get_dtype()} {shape}\n".encode())
            for row in {0, shape[0] - 1} if shape and shape[0] else ():
                digest.update(rows[row : row + 1].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Base:
    """The model folder to which adapters are added."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fingerprint: str | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the merged weights."""
        return read_config(self._folder).dtype

    def check(self, version: WeightVersion, shapes: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
        """The names of the matrices that the version changes. Raises `ValueError` if it does not fit this base, whose
        tensors have these shapes."""
        low_rank = version.manifest.low_rank
        assert low_rank is not None, "whole weights are not added to a base"
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self._folder)
        if low_rank.base != self._fingerprint:
            raise ValueError(f"version {version.version}: an adapter of another base than {self._folder.name}")
        given = {entry.name: tuple(entry.shape) for entry in version.manifest.tensors}
        modules = [name.removeprefix(_PREFIX).removesuffix(_A) for name in given if name.endswith(_A)]
        expected: dict[str, tuple[int, ...]] = {}
        for module in modules:
            (a, b), (rows, columns) = names_of(module), shapes.get(f"{module}.weight", (0, 0))
            rank = given[a][0]
            expected |= {a: (rank, columns), b: (rows, rank)}
        differing = {name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name)}
        if differing:
            raise ValueError(f"version {version.version}: not of this model: {', '.join(sorted(differing)[:5])}")
        return tuple(f"{module}.weight" for module in modules)

    @torch.no_grad()
    def whole(self, version: WeightVersion, names: Sequence[str], *, device: str) -> Iterator[tuple[str, Tensor]]:
        """Yields these tensors of the merged model one by one, in the dtype of the folder's config."""
        low_rank = version.manifest.low_rank
        assert low_rank is not None, "whole weights are not added to a base"
        given, dtype = map_weights(version), self.dtype
        with ExitStack() as files:
            stored = _open_tensors(self._folder, files)
            for name in names:
                a, b = names_of(name.removesuffix(".weight"))
                pair = [given[each].to(device) for each in (a, b) if each in given]
                weight = read_tensor(stored[name], name, _num_bytes(stored[name], name), device=device)
                with working("load"):
                    if pair:
                        weight = add_low_rank(weight.float(), pair[:1], pair[1:], scale=low_rank.scale)
                    weight = weight.to(dtype)
                yield name, weight


def _num_bytes(file: Any, name: str) -> int:
    shape: list[int] = file.get_slice(name).get_shape()
    return LARGEST_ITEM * math.prod(shape)


def _open_tensors(folder: Path, files: ExitStack) -> dict[str, Any]:
    """Each tensor's file, by the tensor's name."""
    stored = [files.enter_context(safe_open(file, framework="pt")) for file in weight_files(folder)]
    return {name: file for file in stored for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping
