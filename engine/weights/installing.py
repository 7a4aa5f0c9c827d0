"""Installs a version's tensors into those of a model in memory.

Invariants:
- a version that does not fit the model is refused before any tensor changes;
- afterwards the model holds the published weights bit for bit, or the install fails: sums of whole weights must equal
  the trainer's; for an adapter those of its matrices must, and the merged weights' those of the copied tensors.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from engine.models.pieces import copy_tensor
from engine.weights.low_rank import Base
from engine.weights.port import WeightVersion
from engine.weights.snapshot import DTYPES, map_weights
from engine.weights.sums import check_sums, fetched, published_sums, sum_of, sums_of


class NothingInstalled(RuntimeError):
    def __init__(self) -> None:
        super().__init__("this engine has no weights: a version must be installed before the first request")


class Installer:
    def __init__(self, folder: Path, *, device: str, is_of_base: bool) -> None:
        """`is_of_base`: the model was loaded from the folder, so an adapter's install writes the adapted tensors only;
        otherwise the model is empty."""
        self._base, self._device, self._is_of_base = Base(folder), device, is_of_base
        self._is_empty = not is_of_base

    def check_begun(self) -> None:
        if self._is_empty:
            raise NothingInstalled

    def install(self, version: WeightVersion, own: Mapping[str, Tensor]) -> None:
        """`own`: by Hugging Face's names. Raises `ValueError`, and `OtherWeights`, after which these weights must not
        be used."""
        is_whole = version.manifest.low_rank is None
        tensors = self._whole_tensors(version, own) if is_whole else self._merged_tensors(version, own)
        published = published_sums(version.manifest)
        if not is_whole:
            check_adapter(version)
        copied: dict[str, Tensor] = {}
        for name, tensor in tensors:
            copy_tensor(own[name], tensor, what="install")
            if published and not is_whole:
                copied[name] = sum_of(tensor)
        self._is_of_base, self._is_empty = not is_whole, False
        merged = dict(zip(copied, fetched(list(copied.values())), strict=True))
        self._check_held(version, published if is_whole else merged, own)

    def _check_held(self, version: WeightVersion, expected: Mapping[str, int], own: Mapping[str, Tensor]) -> None:
        """Compares in the published dtype: on a CPU a model may hold bfloat16 weights as float32."""
        if version.manifest.low_rank is None:
            dtype_of = {entry.name: DTYPES[entry.dtype] for entry in version.manifest.tensors}
        else:
            dtype_of = dict.fromkeys(expected, self._base.dtype)
        sums = fetched([sum_of(own[name], dtype=dtype_of[name]) for name in expected])
        held = dict(zip(expected, sums, strict=True))
        # A NaN may change its bits when it is widened and rounded; the probe reports that such weights have diverged.
        compared = {name: each for name, each in expected.items() if held[name] == each or not own[name].isnan().any()}
        check_sums(version.manifest, compared, held, what="the installed weights")

    def _whole_tensors(self, version: WeightVersion, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        new = map_weights(version)
        differing = own.keys() ^ new.keys()
        differing |= {name for name in own.keys() & new.keys() if own[name].shape != new[name].shape}
        if differing:
            raise ValueError(f"version {version.version}: not of this model: {', '.join(sorted(differing)[:5])}")
        return iter(new.items())

    def _merged_tensors(self, version: WeightVersion, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        changed = self._base.check(version, {name: tensor.shape for name, tensor in own.items()})
        return self._base.whole(version, changed if self._is_of_base else tuple(own), device=self._device)


def check_adapter(version: WeightVersion) -> None:
    """Compares the matrices that arrived with the trainer's. Raises `OtherWeights`."""
    published, tensors = published_sums(version.manifest), map_weights(version)
    if published:
        sums = dict(zip(tensors, sums_of(tensors.values()), strict=True))
        check_sums(version.manifest, published, sums, what="the bytes that arrived")
