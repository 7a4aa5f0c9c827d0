"""The port of shardings: how the ranks of a trainer hold the weights of its models, and update them.

    whole   one process holds everything
    fsdp    each rank has its rows of every matrix; torch gathers a layer when it runs
    zero    DeepSpeed's ZeRO

Invariants:
- every rank makes the same calls in the same order;
- an update happens for all trained parts on all ranks, or not at all;
- the written values of all ranks cover each parameter without overlap.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel
from engine.training.checkpoint.shares import PartShares
from engine.training.checkpoint.stored_state import StoredState
from engine.training.parts.layout import Place
from engine.training.parts.trained import TrainedPart
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.micro_batch import MicroBatch, Share
from engine.training.step.ranks import Ranks


class TrainedShard(Protocol):
    """A rank's shard of a trained part, with its moments."""

    def forward(self, batch: MicroBatch) -> Any:
        """The forward pass of the part's module."""

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Adds gradients up, over calls and ranks. `is_last`: of the update."""

    def drop_gradients(self) -> None:
        """Drops those of a step that has failed."""

    def written(self, *, is_filled: bool = True) -> PartShares:
        """The state that this rank writes. If not `is_filled`, only its shapes matter, not its values."""

    def restore(self, stored: StoredState, *, num_updates: int) -> None:
        """Restores the state from a checkpoint that was written after so many updates."""

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> Sequence[str]:
        """The files that `restore` reads on this rank, given each file's tensor names."""


class Sharding(Protocol):
    world: World
    ranks: Ranks
    """The ranks of a step: those that share sequences are one."""
    share: Share
    """This rank's share of a micro-batch."""
    keeps_stored_dtype: bool
    """Whether a teacher keeps the dtype of its files. All other weights are float32."""

    @property
    def parts(self) -> Sequence[TrainedShard]:
        """In the order of `train` calls."""

    def load(self, folder: Path, *, is_teacher: bool = False) -> TrainedModel:
        """The model of a folder. Its weights may have no memory until `train` or `freeze`. Raises `ValueError` for a
        model that cannot be sharded so."""

    def train(self, module: nn.Module, model: TrainedModel, make_part: Callable[[], TrainedPart]) -> TrainedShard:
        """`module`: its forward pass includes all reads of the model's weights. `make_part`: called once the parameters
        are those that are trained."""

    def freeze(self, module: nn.Module, model: TrainedModel) -> Callable[..., Any]:
        """As `train`, for a module without training. Returns its forward pass."""

    def update(self, *, finite: bool, rate_share: float) -> tuple[bool, Mapping[str, float]]:
        """Clips gradients and updates all parts, if the losses (`finite`) and all gradients are finite on all ranks.
        Returns whether it did, and gradient norms before clipping by the parts' prefixes. `rate_share`: of the full
        learning rate."""

    def written_span(self, place: Place) -> range:
        """The flat values of a parameter that this rank writes into versions."""

    def values_at(self, parameter: nn.Parameter, span: range) -> Tensor:
        """The current values of a written span, flat."""

    def close(self) -> None: ...


class MakeSharding(Protocol):
    def __call__(self, folder: Path, settings: TrainerSettings, *, device: str, world: World) -> Sharding:
        """Joins the other ranks; raises `ValueError` for a model (`folder`) or settings that it does not support.
        Collective."""
