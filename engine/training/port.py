"""Interfaces of trainers and of weight holders for a job's body: complete groups in, one step and its metrics out.

Invariants:
- a step makes the number of optimizer updates in the settings, each of them atomic: a non-finite loss or gradient
  leaves the weights as they were, is counted in `train/skipped`, and the step continues with the next update;
  `train/updates` counts the applied updates;
- `snapshot()` is a copy: further training does not change it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.policy.lineage import WeightsId
from engine.spec.checkpoint_manifest import CheckpointPart
from engine.training.batch import TrainingTrajectory as TrainingTrajectory
from engine.training.batch import Trajectories
from engine.weights.port import WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    metrics: dict[str, float]
    advantages: tuple[float, ...]
    """One per trajectory, in the order given."""
    begun_logprobs: tuple[NDArray[np.float32], ...] = field(default=(), compare=False)
    """Log-probs of each trajectory's first written tokens by the step's first weights; empty if unknown."""


Allocate = Callable[[int], memoryview]
"""Returns a writable buffer of that many zero bytes."""
Write = Callable[[], Mapping[str, CheckpointPart]]
"""Returns the parts that this process has written, once all ranks have written theirs."""


class Loadable(Protocol):
    @property
    def num_parameters(self) -> int: ...

    def load(self, folder: Path) -> None:
        """Loads a checkpoint; a trainer then resumes as if it had never stopped."""


class WeightHolder(Loadable, Protocol):
    """Holds and publishes weights, which suffices for a job that only evaluates."""

    def snapshot(self, weights: WeightsId, *, allocate: Allocate | None = None) -> WeightVersion:
        """A copy of the weights in the dtype of rollouts. With `allocate`, into its memory and without hashes, so that
        training waits only for the copy and its sums."""


class Steps(Loadable, Protocol):
    def train_step(self, trajectories: Trajectories) -> StepResult: ...

    def get_ready_to_save(self) -> None:
        """Allocates the memory of the next copy in the background, if necessary."""

    def prepare_save(self, folder: Path) -> Write:
        """Copies a checkpoint's content; the returned call writes the copy (weights in the Hugging Face layout,
        optimizer and random streams as safetensors and JSON) and may run on another thread during training."""
