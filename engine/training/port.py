"""The border to a trainer: whole groups in, one optimizer step and its metrics out.

Invariants:
- a step either happens whole or not at all: a non-finite loss or gradient leaves the weights as they were and
  is counted in the metric `train/skipped`;
- `snapshot()` is a copy: training on does not change it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.weights.port import WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTrajectory:
    group: int
    """Trajectories with the same number are samples of one prompt."""
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    metrics: dict[str, float]
    advantages: tuple[float, ...]
    """One for each trajectory, in the order given."""


class Trainer(Protocol):
    def train_step(self, trajectories: Sequence[TrainingTrajectory]) -> StepResult: ...

    def snapshot(self, version: int) -> WeightVersion: ...

    def save(self, folder: Path) -> None:
        """Weights in the Hugging Face layout, optimizer and random streams, as safetensors and JSON."""

    def load(self, folder: Path) -> None: ...
