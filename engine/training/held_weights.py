"""Held weights, in place of a trainer in a job that only evaluates: in host memory, handed out as they are stored.

Invariant: weights are handed out as the checkpoint's weights file holds them, bit for bit, whichever trainer wrote
it: no optimizer, no critic and no adapter is needed to read it, nor read.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.models.families.trained_model import TrainedModel, load_model, public_tensors, read_model_config
from engine.policy.lineage import WeightsId
from engine.training.checkpoint.content import holds_state
from engine.training.checkpoint.folder import parts_here, read_manifest, verify_parts
from engine.training.port import Allocate
from engine.weights.port import WeightVersion
from engine.weights.snapshot import pack_weights


class HeldWeights:
    def __init__(self, model_folder: Path) -> None:
        """The model's own weights, until a checkpoint is loaded."""
        self._folder = model_folder
        self._read: TrainedModel | None = None

    @property
    def num_parameters(self) -> int:
        return self._model.num_parameters

    def load(self, folder: Path) -> None:
        _, parts = read_manifest(folder)
        verify_parts(folder, {name: parts[name] for name in parts_here(folder, parts) if not holds_state(name)})
        if read_model_config(folder) != read_model_config(self._folder):
            raise ValueError(f"{folder}: the checkpoint is of another model than this job's")
        self._folder, self._read = folder, None

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]:
        """To `load`."""
        return [file for file in stored if not holds_state(file)]

    def snapshot(self, weights: WeightsId, *, allocate: Allocate | None = None) -> WeightVersion:
        return pack_weights(public_tensors(self._model), weights=weights, allocate=allocate)

    @property
    def _model(self) -> TrainedModel:
        """On the CPU, in the dtype that rollouts run in; read once it is known which weights they are."""
        if self._read is None:
            self._read = load_model(self._folder, device="cpu")
        return self._read
