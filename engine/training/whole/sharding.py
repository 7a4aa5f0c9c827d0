"""One process on one device: every weight, gradient and moment is there whole.

Invariant: a model is read straight into its memory, so nothing but its weights and one tensor's values exist then.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel, load_model
from engine.training.optimized_part import OptimizedPart, update_together
from engine.training.parts.layout import Place
from engine.training.parts.trained import TrainedPart
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.micro_batch import Share, whole_batch
from engine.training.step.ranks import Alone, Ranks


class EveryRow:
    def held_span(self, place: Place) -> range:
        return range(place.shape.numel())

    def written_span(self, place: Place) -> range:
        return range(place.shape.numel())

    def sum_over_shards(self, of_shard: Tensor) -> Tensor:
        return of_shard


ROWS: Final = EveryRow()


class WholeSharding:
    keeps_stored_dtype = False

    def __init__(self, folder: Path, settings: TrainerSettings, *, device: str, world: World) -> None:
        assert world.count == 1, "several ranks shard"
        self._settings, self._device = settings, device
        self.world = world
        self.ranks: Ranks = Alone()
        self.share: Share = whole_batch
        self._parts: list[OptimizedPart] = []

    @property
    def parts(self) -> Sequence[OptimizedPart]:
        return self._parts

    def load(self, folder: Path, *, is_teacher: bool = False) -> TrainedModel:
        return load_model(folder, device=self._device, dtype=torch.float32)

    def train(self, module: nn.Module, model: TrainedModel, make_part: Callable[[], TrainedPart]) -> OptimizedPart:
        self._parts.append(OptimizedPart(make_part(), module, self._settings.optimizer, ROWS))
        return self._parts[-1]

    def freeze(self, module: nn.Module, model: TrainedModel) -> Callable[..., Any]:
        return module

    def update(self, *, finite: bool, rate_share: float) -> tuple[bool, Mapping[str, float]]:
        return update_together(self._parts, finite=finite, rate_share=rate_share)

    def written_span(self, place: Place) -> range:
        return ROWS.written_span(place)

    def values_at(self, parameter: nn.Parameter, span: range) -> Tensor:
        return parameter.detach().reshape(-1)[span.start : span.stop]

    def close(self) -> None:
        """The world was not entered: this process joins no group."""
