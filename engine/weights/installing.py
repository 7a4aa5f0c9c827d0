"""Installing: a version's tensors into those of a model in memory.

Invariant: a version that does not fit this model is refused before anything has changed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from engine.models.pieces import copy_tensor
from engine.weights.low_rank import Base
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights


class NothingInstalled(RuntimeError):
    def __init__(self) -> None:
        super().__init__("this engine began empty: a version must be installed before anything is submitted")


class Installer:
    def __init__(self, folder: Path, *, device: str, is_of_base: bool) -> None:
        """`is_of_base`: the model was just loaded from the folder, which has what adapters do not change; else it is
        empty."""
        self._base, self._device, self._is_of_base = Base(folder), device, is_of_base
        self._is_empty = not is_of_base

    def check_begun(self) -> None:
        if self._is_empty:
            raise NothingInstalled

    def install(self, version: WeightVersion, own: Mapping[str, Tensor]) -> None:
        """`own`: by Hugging Face's names. Raises `ValueError`."""
        is_whole = version.manifest.low_rank is None
        for name, tensor in self._whole(version, own) if is_whole else self._on_base(version, own):
            copy_tensor(own[name], tensor, what="install")
        self._is_of_base, self._is_empty = not is_whole, False

    def _whole(self, version: WeightVersion, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        new = map_weights(version)
        differing = own.keys() ^ new.keys()
        differing |= {name for name in own.keys() & new.keys() if own[name].shape != new[name].shape}
        if differing:
            raise ValueError(f"version {version.version}: not of this model: {', '.join(sorted(differing)[:5])}")
        return iter(new.items())

    def _on_base(self, version: WeightVersion, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        changed = self._base.check(version, {name: tensor.shape for name, tensor in own.items()})
        return self._base.whole(version, changed if self._is_of_base else tuple(own), device=self._device)
