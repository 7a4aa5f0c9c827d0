"""Rows of a parameter, read from safetensors files whose tensors are parts of it, and nothing else of these files.

Invariant: what is read is float32, whatever it is stored in; a tensor that is missing, or of another shape than the
model asks for, is a ValueError.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import safe_open
from torch import Tensor

from engine.signs import at_work
from engine.training.parts.layout import Place, RowRun


class StoredRows:
    def __init__(self, files: Iterable[Path]) -> None:
        self._files = list(files)
        self._open = ExitStack()
        self._stored: dict[str, tuple[Path, Any]] = {}

    def __enter__(self) -> Self:
        for file in self._files:
            stored = self._open.enter_context(safe_open(file, framework="pt"))
            self._stored |= dict.fromkeys(stored.keys(), (file, stored))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def read(self, place: Place, rows: range, *, under: str = "") -> Tensor:
        """`under`: what stands before the names in these files."""
        found = torch.empty(len(rows), *place.shape[1:])
        for run in place.runs(rows):
            part = found[run.first : run.first + len(run.rows)]
            with at_work("load", num_bytes=part.nbytes):
                part.copy_(self._slice(under + run.name, run))
        return found

    def tensors(self, under: str) -> dict[str, Tensor]:
        """Whole, by their names in the files."""
        named = [(name, stored) for name, (_, stored) in self._stored.items() if name.startswith(under)]
        return {name: stored.get_tensor(name) for name, stored in named}

    def _slice(self, name: str, run: RowRun) -> Tensor:
        if name not in self._stored:
            raise ValueError(f"{self._files[0].parent}: tensors missing from the weights: {name}")
        file, stored = self._stored[name]
        part = stored.get_slice(name)
        if tuple(part.get_shape()) != tuple(run.shape):
            asked = tuple(run.shape)
            raise ValueError(f"{file.name}: {name} has shape {tuple(part.get_shape())}, config.json asks for {asked}")
        values: Tensor = part[run.rows.start : run.rows.stop]
        return values
