"""The sharding by torch's FSDP2: each rank reads, updates and writes its rows.

Invariants:
- models are laid out without memory, so a rank never holds more than its rows of a model that is read;
- losses and gradient norms, which decide whether an update happens, have the same bits on each rank.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel, read_model_config
from engine.models.loading import weight_files
from engine.spec.job import OptimizerSpec
from engine.training.checkpoint.stored_state import StoredState
from engine.training.fsdp.copies import Copies
from engine.training.fsdp.division import Division
from engine.training.fsdp.gradient_sums import sums_once
from engine.training.optimized_part import OptimizedPart, update_together
from engine.training.parts.layout import Place, decoder_places
from engine.training.parts.trained import TrainedPart
from engine.training.ranks.sequence_parallel import Sharers, refuse_heads
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.micro_batch import Share, whole_batch
from engine.training.step.ranks import Ranks
from engine.training.step.scoring import dtype_of_products


class FsdpPart(OptimizedPart):
    def __init__(self, part: TrainedPart, module: nn.Module, spec: OptimizerSpec, division: Division) -> None:
        super().__init__(part, module, spec, division)
        self._division = division

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        self._division.begin_backward(is_last=is_last)
        super().backward(loss, is_last=is_last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unfilled:
    """Where the weights of a model without memory are."""

    folder: Path
    places: Mapping[str, Place]


class FsdpSharding:
    keeps_stored_dtype = True  # a gather casts a teacher's rows to the same bits as it would from float32

    def __init__(self, folder: Path, settings: TrainerSettings, *, device: str, world: World) -> None:
        config = read_model_config(folder)
        num_sharers, self._device = settings.trainer.sequence_parallel, torch.device(device)
        self._settings, self.world = settings, world
        self.ranks: Ranks = world
        self.share: Share = whole_batch
        self._parts: list[FsdpPart] = []
        self._unfilled: dict[TrainedModel, _Unfilled] = {}
        world.enter(device)
        try:
            refuse_heads(config, num_sharers=num_sharers)
            if num_sharers > 1:
                sharers = Sharers(world, num_sharers=num_sharers)
                self.ranks, self.share = sharers, sharers.share
            copies = Copies.within(settings.trainer.shard_within, world)
            self._division = Division(
                world,
                self._device,
                dtype_of_products(settings.trainer.compute_dtype, self._device),
                copies,
                sums_once=sums_once(settings, config, self._device, copies, world),
            )
        except BaseException:
            self.close()
            raise

    @property
    def parts(self) -> Sequence[FsdpPart]:
        return self._parts

    def load(self, folder: Path, *, is_teacher: bool = False) -> TrainedModel:
        config = read_model_config(folder)
        refuse_heads(config, num_sharers=self._settings.trainer.sequence_parallel)
        model = self._division.empty_model(config, config.dtype if is_teacher else torch.float32)
        places = decoder_places(config, dict(model.named_parameters()))
        self._unfilled[model] = _Unfilled(folder=folder, places=places)
        return model

    def train(self, module: nn.Module, model: TrainedModel, make_part: Callable[[], TrainedPart]) -> FsdpPart:
        self._divide(module, model)
        self._parts.append(FsdpPart(make_part(), module, self._settings.optimizer, self._division))
        return self._parts[-1]

    def freeze(self, module: nn.Module, model: TrainedModel) -> Callable[..., Any]:
        self._divide(module, model)
        return module

    def _divide(self, module: nn.Module, model: TrainedModel) -> None:
        unfilled = self._unfilled.pop(model)
        self._division.divide(module, model)
        parameters = dict(model.named_parameters())
        places = {name: place for name, place in unfilled.places.items() if name in parameters}  # a critic has no head
        with StoredState(weight_files(unfilled.folder)) as stored:
            self._division.fill(parameters, places, stored)

    def update(self, *, finite: bool, rate_share: float) -> tuple[bool, Mapping[str, float]]:
        return update_together(self._parts, finite=finite, rate_share=rate_share)

    def written_span(self, place: Place) -> range:
        return self._division.written_span(place)

    def values_at(self, parameter: nn.Parameter, span: range) -> Tensor:
        return self._division.values_at(parameter, span)

    def close(self) -> None:
        self.world.leave()
