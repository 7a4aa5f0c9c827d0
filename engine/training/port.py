"""The border to who holds the weights, and to a trainer: complete groups in, one step and its metrics out.

Invariants:
- a step makes as many optimizer updates as the settings ask for, each of which happens whole or not at all: a
  non-finite loss or gradient leaves the weights as they were, is counted in the metric `train/skipped`, and the next
  update is made; `train/updates` counts those that were made;
- `snapshot()` is a copy: training on does not change it.
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
from engine.weights.port import LowRank, Probe, TensorEntry, WeightVersion
from engine.weights.spans import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    metrics: dict[str, float]
    advantages: tuple[float, ...]
    """One for each trajectory, in the order given."""
    begun_logprobs: tuple[NDArray[np.float32], ...] = field(default=(), compare=False)
    """Of each trajectory, its first written tokens' by the weights that the step began with; empty where not known."""


Allocate = Callable[[int], memoryview]
"""A writable buffer of so many zero bytes."""
Write = Callable[[], Mapping[str, CheckpointPart]]
"""The parts that this process has written, once all ranks have written theirs."""


class Loadable(Protocol):
    @property
    def num_parameters(self) -> int: ...

    def load(self, folder: Path) -> None:
        """From a checkpoint; then a trainer goes on as if it had never stopped."""


class WeightHolder(Loadable, Protocol):
    """A holder of weights: all that a job that only evaluates needs."""

    def snapshot(self, weights: WeightsId, *, allocate: Allocate | None = None) -> WeightVersion:
        """A copy of the weights, in the dtype that rollouts run in. With `allocate`, into its memory and without
        hashes: the copy and its sums are all that training waits for."""


class Steps(Loadable, Protocol):
    def train_step(self, trajectories: Trajectories) -> StepResult: ...

    def get_ready_to_save(self) -> None:
        """Takes the memory of the next copy beside what goes on, where it is not there yet."""

    def prepare_save(self, folder: Path) -> Write:
        """Copies what a checkpoint holds; the returned call writes the copy (weights in the Hugging Face layout,
        optimizer and random streams as safetensors and JSON) and may run on another thread while training goes on."""


class Trainer(WeightHolder, Steps, Protocol):
    """One process that trains."""

    def probe(self) -> Probe:
        """Of the weights as they are, for the version that is published of them. Every rank makes this call."""


class SharedTrainer(Trainer, Protocol):
    """One rank of several. Its `snapshot` has its own values, and zeros for the others'."""

    @property
    def published(self) -> "Share": ...


class Share(Protocol):
    """What one of several ranks writes of a version."""

    entries: tuple[TensorEntry, ...]
    """The whole version's."""
    low_rank: LowRank | None
    """Of a version that is an adapter."""
    share: Spans

    def write(self, memory: memoryview, spans: Spans) -> tuple[int, ...]:
        """Its bytes, as they are now, into memory of `spans`, to which they belong. Every rank makes this call. What
        its values add to the sum of each tensor (engine/weights/sums.py)."""
