"""Weights for a job that only evaluates, in place of a trainer: held in host memory, published as stored.

Invariant: the published weights equal the checkpoint's weights file bit for bit, whichever trainer wrote it; optimizer,
critic and adapter are not read.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.models.families.trained_model import TrainedModel, load_model, public_tensors, read_model_config
from engine.policy.lineage import WeightsId
from engine.training.checkpoint.content import holds_state
from engine.training.checkpoint.folder import local_parts, read_manifest, verify_parts
from engine.training.port import Allocate
from engine.weights.port import WeightVersion
from engine.weights.snapshot import pack_weights


class HeldWeights:
    def __init__(self, model_folder: Path) -> None:
        """Holds the model's own weights until a checkpoint is loaded."""
        self._folder = model_folder
        self._read: TrainedModel | None = None

    @property
    def num_parameters(self) -> int:
        return self._model.num_parameters

    def load(self, folder: Path) -> None:
        _, parts = read_manifest(folder)
        verify_parts(folder, {name: parts[name] for name in local_parts(folder, parts) if not holds_state(name)})
        if read_model_config(folder) != read_model_config(self._folder):
            raise ValueError(f"{folder}: the checkpoint is of another model than the job's")
        self._folder, self._read = folder, None

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]:
        """The files that `load` reads."""
        return [file for file in stored if not holds_state(file)]

    def snapshot(self, weights: WeightsId, *, allocate: Allocate | None = None) -> WeightVersion:
        return pack_weights(public_tensors(self._model), weights=weights, allocate=allocate)

    @property
    def _model(self) -> TrainedModel:
        """The model on the CPU, in the dtype of rollouts; read on first use, so that `load` may come first."""
        if self._read is None:
            self._read = load_model(self._folder, device="cpu")
        return self._read
