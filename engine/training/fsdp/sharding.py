"""Parameters that torch's `fully_shard` (FSDP2) shards among the ranks: makes, fills and steps them, reads them whole.

    each rank    its rows of every matrix: float32 weights, gradients and two moments
    a layer      gathered for its forward pass, freed, gathered again for its backward pass, after which its gradients
                 are summed over the ranks and each keeps its rows of the sum
    the root     embedding, last norm and head: like a layer, gathered for the whole pass

With `compute_dtype` bfloat16, weights are gathered in bfloat16, which halves the traffic; sums over ranks, and all that
a rank keeps, are float32. A mixture's router is gathered in float32: rounded weights choose other experts.

Invariants:
- a rank never holds more whole weights than the root and two layers, one of which is gathered while the other computes;
  and one matrix while weights are read or filled;
- gradients of ranks and of micro-batches add up, as losses do. They are summed over the ranks after each micro-batch:
  deferred to the last one, every rank would keep the whole model's gradients until then;
- a method marked collective is called by all ranks, in the same order.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed import group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from engine.models.families.trained_model import ModelConfig, TrainedModel, empty_model
from engine.models.mixture import Router
from engine.spec.job import OptimizerSpec
from engine.training.checkpoint.shares import PartShares, Share
from engine.training.checkpoint.stored_state import StoredState
from engine.training.optimizer.fused_adamw import FusedAdamW
from engine.training.parts.layout import Place, own_part, places_of, rows_of
from engine.training.parts.trained import MOMENTS, TrainedPart
from engine.training.ranks.world import World


class Sharding:
    """How FSDP shards, and among which ranks."""

    def __init__(self, world: World, device: torch.device, gathered_in: torch.dtype) -> None:
        """`world`: must have been entered."""
        assert group.WORLD is not None
        self.world, self.device = world, device
        self._mesh = DeviceMesh.from_group(group.WORLD, device.type)
        self._precision = MixedPrecisionPolicy(
            param_dtype=gathered_in,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,  # a micro-batch's log-probs are inputs too
        )

    # Modules -----------------------------------------------------------------------------------------------------

    def empty_model(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> TrainedModel:
        """A model whose weights have no memory until `divide`; the rotary tables are filled. `dtype`: of the rows that
        a rank keeps, not of the computation."""
        return empty_model(config, dtype, device=self.device)

    def divide(self, module: nn.Module, model: TrainedModel) -> None:
        """Replaces parameters by this rank's rows, in memory without values. `module`: its forward pass includes the
        model's and all other reads of its weights."""
        exact = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        for router in (each for each in model.modules() if isinstance(each, Router)):
            self._divide(router, exact)
        for each in (*model.layers, module):
            self._divide(each, self._precision)
        module._apply(self._allocate)  # type: ignore[no-untyped-call]

    def _divide(self, module: nn.Module, precision: MixedPrecisionPolicy) -> None:
        # Also for the root, which would stay whole after a pass without gradients, beyond the next update.
        shard = fully_shard(module, mesh=self._mesh, mp_policy=precision, reshard_after_forward=True)
        shard.set_gradient_divide_factor(1.0)
        shard.set_force_sum_reduction_for_comms(True)  # a plain sum, without rounding by a division

    def _allocate(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=self.device) if tensor.device.type == "meta" else tensor

    # Rows --------------------------------------------------------------------------------------------------------

    def rows(self, place: Place) -> range:
        """This rank's rows."""
        return rows_of(self.world.index, self.world.count, place.shape[0])

    def fill(self, parameters: Mapping[str, nn.Parameter], places: Mapping[str, Place], stored: StoredState) -> None:
        """Fills this rank's rows from files that all ranks can read."""
        for share in self.shares(places, {name: own_part(parameters[name]) for name in places}).values():
            stored.fill(share, under="")

    def shares(self, places: Mapping[str, Place], own: Mapping[str, Tensor]) -> dict[str, Share]:
        """`own`: this rank's rows."""
        return {name: Share(place, self._find_span(place), own[name].view(-1)) for name, place in places.items()}

    def _find_span(self, place: Place) -> range:
        rows, width = self.rows(place), place.shape[1:].numel()
        return range(rows.start * width, rows.stop * width)

    def gathered(self, rows: Tensor, shape: torch.Size) -> Tensor | None:
        """The whole value on rank 0, valid until the next call. Collective."""
        parts = self.world.gather(self._pad(rows, shape))
        return torch.cat(parts)[: shape[0]] if parts else None

    def _pad(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """The rows, padded to the number of the first rank's."""
        padded = torch.zeros(
            len(rows_of(0, self.world.count, shape[0])), *shape[1:], dtype=rows.dtype, device=self.device
        )
        padded[: len(rows)] = rows
        return padded


class ShardedPart:
    """A trained part's rows on this rank, with their optimizer."""

    def __init__(self, part: TrainedPart, optimizer: OptimizerSpec, sharding: Sharding) -> None:
        """`part`: of sharded modules."""
        self.prefix = part.prefix
        self._part, self._sharding = part, sharding
        self._max_norm = optimizer.max_grad_norm
        self._places = places_of(part.parameters, part.views)
        # The same memory, so that an update of these updates the module.
        self._own = {name: nn.Parameter(own_part(parameter)) for name, parameter in part.parameters.items()}
        self._optimizer = FusedAdamW.of(replace(part, parameters=self._own), optimizer)

    # One step ----------------------------------------------------------------------------------------------------

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()
        for parameter in self._part.parameters.values():
            parameter.grad = None

    def clip(self) -> float:
        """Clips the gradient, of which each rank has its rows, and returns its norm, the same on each. Collective."""
        for name, parameter in self._part.parameters.items():
            self._own[name].grad = None if parameter.grad is None else own_part(parameter.grad)
        gradients = [own.grad for own in self._own.values() if own.grad is not None]
        # Squared in float64: in float32 the square of a norm from 2^64 on is infinite.
        own_norm = get_total_norm(gradients).to(self._sharding.device, torch.float64)
        norm = self._sharding.world.sum(own_norm.square()).sqrt().float()
        clip_grads_with_norm_(self._own.values(), self._max_norm, norm)
        return norm.item()

    def update(self, share: float) -> None:
        for each in self._optimizer.groups:
            each.lr = each.full_lr * share
        self._optimizer.step()

    # The whole state ---------------------------------------------------------------------------------------------

    def shares(self, *, is_filled: bool = True) -> PartShares:
        """This rank's share of the state. If not `is_filled`, only its shapes matter, not its values."""
        own = {"master": {name: each.detach() for name, each in self._own.items()}}
        for moment in MOMENTS:
            own[moment] = {
                name: self._optimizer.moment_of(each, moment, is_filled=is_filled) for name, each in self._own.items()
            }
        kinds = {kind: self._sharding.shares(self._places, values) for kind, values in own.items()}
        return PartShares(part=self._part, kinds=kinds)

    def take(self, shares: PartShares) -> None:
        """Takes moments from `shares`, which come from `shares()` and have been filled since."""
        for moment in MOMENTS:
            for name, share in shares.kinds[moment].items():
                self._optimizer.take_moment(self._own[name], moment, share.values)

    def reset_moments(self, *, num_updates: int) -> None:
        for own in self._own.values():
            self._optimizer.reset(own, num_updates=num_updates)
