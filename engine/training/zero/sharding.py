"""The sharding by DeepSpeed's ZeRO.

    stage   each rank holds its shard of
    1       AdamW's moments and the float32 weights that they update
    2       the gradients too
    3       the weights used in forward and backward passes too; a layer's are gathered when it runs

Invariants:
- weights, gradients and moments are float32. bfloat16 is used by autocast inside the module: DeepSpeed's own bfloat16
  mode would also round norms and embeddings, unlike other shardings, and stage 1 would use another optimizer class;
- before an update, all ranks check the losses and the gradients of all parts;
- each rank reads its own values of a model, writes its own part of a checkpoint and publishes its own values of a
  version; rank 0 alone reads a checkpoint's weights, one matrix at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from engine.models.decoder import Decoder, DecoderConfig
from engine.models.families.trained_model import TrainedModel, read_model_config
from engine.models.loading import read_config, weight_files
from engine.training.checkpoint.stored_state import StoredState
from engine.training.parts.layout import Place
from engine.training.parts.trained import TrainedPart
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.micro_batch import Share, whole_batch
from engine.training.step.ranks import Ranks
from engine.training.zero.division import Division
from engine.training.zero.guest import surroundings
from engine.training.zero.part import ZeroPart


class ZeroSharding:
    keeps_stored_dtype = False

    def __init__(self, folder: Path, settings: TrainerSettings, *, device: str, world: World) -> None:
        _refuse_mixture(_read_decoder_config(folder))
        self._settings = settings
        self._division = Division(stage=settings.trainer.zero_stage, world=world, device=device)
        self.world = world
        self.ranks: Ranks = world
        self.share: Share = whole_batch
        self._parts: list[ZeroPart] = []
        world.enter(device, surroundings())

    @property
    def parts(self) -> Sequence[ZeroPart]:
        return self._parts

    def load(self, folder: Path, *, is_teacher: bool = False) -> Decoder:
        model = self._division.empty_decoder(_read_decoder_config(folder))
        with StoredState(weight_files(folder)) as stored:
            self._division.fill(model, stored)
        return model

    def train(self, module: nn.Module, model: TrainedModel, make_part: Callable[[], TrainedPart]) -> ZeroPart:
        self._parts.append(ZeroPart(make_part(), module, self._settings.optimizer, self._division))
        return self._parts[-1]

    def freeze(self, module: nn.Module, model: TrainedModel) -> Callable[..., Any]:
        return self._division.freeze(module)

    def update(self, *, finite: bool, rate_share: float) -> tuple[bool, Mapping[str, float]]:
        if not (finite and self._have_finite_gradients()):
            for part in self._parts:
                part.spoil_gradients()
        outcomes = {part.prefix: part.step(rate_share) for part in self._parts}
        updated = {outcome.updated for outcome in outcomes.values()}
        assert len(updated) == 1, "policy and critic did not agree whether to make the update"
        return all(updated), {prefix: outcome.grad_norm for prefix, outcome in outcomes.items()}

    def _have_finite_gradients(self) -> bool:
        """The same answer on every rank. True for a single part, whose own step checks."""
        return len(self._parts) == 1 or all(part.has_finite_gradients() for part in self._parts)

    def written_span(self, place: Place) -> range:
        return self._division.written_span(place)

    def values_at(self, parameter: nn.Parameter, span: range) -> Tensor:
        return self._division.values_at(parameter, span)

    def close(self) -> None:
        for part in self._parts:
            part.close()
        self._parts.clear()
        self.world.leave()


def _read_decoder_config(folder: Path) -> DecoderConfig:
    try:
        return read_config(folder)
    except ValueError as error:
        read_model_config(folder)  # raises its own error for a model that no trainer supports
        raise ValueError(f"trainer.backend must be torch for this model, got deepspeed: {error}") from error


def _refuse_mixture(config: DecoderConfig) -> None:
    if config.mixture is not None:
        raise ValueError(
            "trainer.backend: deepspeed trains dense models, got a mixture of "
            f"{config.mixture.num_experts} experts; set it to torch"
        )
